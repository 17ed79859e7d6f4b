"""The layers: initial values, shapes, randomness, and what is refused."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from numpy.testing import assert_allclose

import asyncsched as asc
from asyncsched import nn
from tests.fake_cupy import fake_cupy

pytestmark = pytest.mark.one_loop


def spread(array: np.ndarray, bound: float) -> bool:
    """Whether it is drawn evenly from -bound to bound."""
    inside = np.abs(array).max() <= bound
    return bool(inside and abs(array.mean()) < bound / 20 and abs(array.std() / bound - 1 / sqrt(3)) < 0.02)


async def test_initial_values_are_distributed_as_documented(s):
    linear, conv = nn.Linear(300, 200, rng=0), nn.Conv2d(8, 90, (3, 5), rng=0)
    assert spread(await linear.weight, 1 / sqrt(300))
    assert np.abs(await linear.bias).max() <= 1 / sqrt(300)
    assert spread(await conv.weight, 1 / sqrt(8 * 15))
    words = await nn.Embedding(300, 200, rng=0).weight
    assert abs(words.mean()) < 0.02
    assert abs(words.std() - 1) < 0.02
    norm = nn.LayerNorm((3, 4))
    assert (await norm.weight == 1).all()
    assert not (await norm.bias).any()
    attention = nn.MultiheadAttention(100, 4, rng=0)
    assert spread(await attention.in_proj_weight, sqrt(6 / 400))
    assert spread(await attention.out_proj.weight, 1 / sqrt(100))
    assert not (await attention.in_proj_bias).any()
    assert not (await attention.out_proj.bias).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
async def test_a_seed_gives_the_same_values_again(s, dtype):
    a, b, c = [await nn.Linear(30, 20, rng=seed, dtype=dtype).weight for seed in (0, 0, 1)]
    assert a.dtype == dtype
    assert a.tobytes() == b.tobytes() != c.tobytes()
    one, two = [await nn.Linear(30, 20, rng=np.random.default_rng(0)).bias for _ in range(2)]
    assert one.tobytes() == two.tobytes()
    rng = np.random.default_rng(0)
    first, second = nn.Linear(30, 20, rng=rng), nn.Linear(30, 20, rng=rng)
    assert ((await first.weight) != (await second.weight)).any()
    unseeded = [await nn.Linear(30, 20).weight for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).any()


async def test_a_constructor_waits_for_nothing_however_many_parameters_there_are():
    async with asc.Scheduler("cpu", max_ops=2, max_bytes="1 MiB") as s:
        model = nn.Sequential(*[nn.Linear(20, 20, rng=0) for _ in range(100)])
        y = await model(await s.put(np.ones((2, 20), np.float32)))
        assert y.shape == (2, 20)


async def test_parameters_go_where_they_are_told():
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        where = [nn.Linear(2, 2, device=device).weight.device for device in s.devices]
        assert where == list(s.devices)


async def test_the_projections_of_attention_differ_from_each_other(s):
    """A seed draws for all of them, one after the other."""
    attention = nn.MultiheadAttention(8, 2, rng=0)
    query, out = (await attention.in_proj_weight)[:8], await attention.out_proj.weight
    assert abs(np.corrcoef(query.ravel(), out.ravel())[0, 1]) < 0.5


async def test_images_are_flattened_when_there_are_none(s):
    assert (await nn.Flatten()(asc.zeros((0, 2, 3)))).shape == (0, 6)


async def test_without_a_scheduler_the_error_names_the_cure():
    with pytest.raises(asc.SchedulerClosed, match="pass `scheduler=`"):
        nn.Linear(2, 2)


async def test_what_draws_anew_for_each_call_is_not_captured(s):
    """A replay would repeat its numbers. The generator is left as it was."""
    x, layer = await s.put(np.ones((4, 50), np.float32)), nn.Dropout(0.5, rng=0)
    drawing = (layer, lambda x: layer(x @ x.mT), lambda x: nn.Linear(50, 2, rng=0)(x).detach())
    for fn in drawing:
        with pytest.raises(asc.CaptureError, match=r"`eval\(\)`|initial values"):
            await s.capture(fn, x)
    assert (await layer(x) == await nn.Dropout(0.5, rng=0)(x)).all()
    assert (await (await s.capture(nn.Dropout(0.5).eval(), x))(x) == 1).all()


async def test_a_captured_dropout_keeps_a_seed_that_it_is_given(s):
    x = await s.put(np.ones((4, 50), np.float32))
    graph = await s.capture(lambda x: nn.dropout(x, 0.5, seed=3), x)
    assert (await graph(x) == await nn.dropout(x, 0.5, seed=3)).all()


async def test_dropout_drops_its_share_and_keeps_the_mean(s):
    x = await s.put(np.ones((200, 500), np.float32))
    layer = nn.Dropout(0.3, rng=0)
    y = await layer(x)
    assert set(np.unique(y)) == {0, np.float32(1 / 0.7)}
    assert abs((y == 0).mean() - 0.3) < 0.01
    assert (await layer(x) != y).any()
    assert (await nn.Dropout(0.3, rng=0)(x) == y).all()
    assert not (await nn.Dropout(1.0)(x)).any()
    assert nn.Dropout(0.0)(x) is x
    assert layer.eval()(x) is x


async def test_shapes(s):
    images = asc.ones((2, 3, 9, 8), dtype=np.float32)
    assert nn.Conv2d(3, 5, 3, stride=(2, 1), padding=1)(images).shape == (2, 5, 5, 8)
    assert nn.Conv2d(3, 5, (2, 3), dilation=(1, 2), bias=False)(images).shape == (2, 5, 8, 4)
    assert nn.MaxPool2d(2)(images).shape == (2, 3, 4, 4)
    assert nn.MaxPool2d(3, stride=1, padding=1)(images).shape == (2, 3, 9, 8)
    assert nn.Flatten()(images).shape == (2, 216)
    assert nn.Linear(8, 4)(images).shape == (2, 3, 9, 4)
    assert nn.LayerNorm([9, 8])(images).shape == images.shape
    assert nn.Embedding(5, 6)(asc.ones((2, 3), dtype=np.int64)).shape == (2, 3, 6)


async def test_attention_to_itself_is_attention_to_the_same_key(s):
    attention = nn.MultiheadAttention(12, 3, rng=0, dtype=np.float64)
    x = await s.put(np.random.default_rng(0).standard_normal((2, 5, 12)))
    mask = asc.tril(asc.ones((5, 5), dtype=bool))
    expected = await attention(x, is_causal=True)
    for got in (attention(x, x, x, is_causal=True), attention(x, x, attn_mask=~mask), attention(x, attn_mask=~mask)):
        assert np.allclose(await got, expected, rtol=1e-12)
    shorter = await attention(x[:, :2], x, x)
    assert np.allclose(shorter, (await attention(x))[:, :2], rtol=1e-12)


async def test_a_layer_of_no_features_gives_its_bias(s):
    layer = nn.Linear(0, 3, rng=0)
    assert np.array_equal(await layer(asc.ones((2, 0), dtype=np.float32)), np.tile(await layer.bias, (2, 1)))
    layer(asc.ones((2, 0), dtype=np.float32)).sum().backward()
    assert np.array_equal(await layer.bias.grad, [2, 2, 2])
    with pytest.raises(ValueError, match="must be positive"):
        nn.Conv2d(2, 3, 0)(asc.ones((1, 2, 4, 4), dtype=np.float32))


async def test_attention_sees_nothing_that_is_to_come(s):
    attention = nn.MultiheadAttention(8, 2, bias=False, rng=0)
    a = np.random.default_rng(0).standard_normal((1, 6, 8)).astype(np.float32)
    b = a.copy()
    b[:, 4:] = 0
    x, y = [await attention(await s.put(one), is_causal=True) for one in (a, b)]
    assert (x[:, :4] == y[:, :4]).all()
    assert (x[:, 4:] != y[:, 4:]).any()


async def test_what_does_not_fit(s):
    for message, call in (
        ("must be divisible by num_heads=0", lambda: nn.MultiheadAttention(8, 0)),
        ("must be divisible by num_heads=3", lambda: nn.MultiheadAttention(10, 3)),
        ("approximate='erf'", lambda: nn.gelu(asc.ones(2), "erf")),
        ("p=2 must be a probability", lambda: nn.Dropout(2)),
        ("p=2 must be a probability", lambda: nn.dropout(asc.ones(2), 2, seed=0)),
        ("axis 2 is out of bounds", lambda: nn.softmax(asc.ones((2, 2)), 2)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    mask = asc.zeros((3, 3), dtype=np.float32)
    mask.requires_grad = True
    with pytest.raises(ValueError, match=r"give `mask.detach\(\)`"):
        nn.MultiheadAttention(4, 1)(asc.ones((1, 3, 4), dtype=np.float32), attn_mask=mask)


async def test_attention_takes_masks_by_batch_and_heads(s):
    attention, x = nn.MultiheadAttention(4, 2), asc.ones((3, 5, 4), dtype=np.float32)
    for shape in ((2, 5, 5), (1, 5, 5), (3, 5, 5)):
        with pytest.raises(ValueError, match="with three axes the first is batch \\* heads"):
            attention(x, attn_mask=asc.zeros(shape, dtype=bool))
    with pytest.raises(ValueError, match="must broadcast to"):
        attention(x, attn_mask=asc.zeros((4, 5), dtype=bool))


async def test_what_has_another_place_in_pytorch_is_refused_by_position(s):
    x, w = asc.ones((2, 4)), asc.ones(4)
    for call in (
        lambda: nn.MultiheadAttention(4, 2, 0.0),
        lambda: nn.Conv2d(4, 4, 1, 1, 0, 1, 2),
        lambda: nn.layer_norm(x, w, w),
        lambda: nn.layer_norm(x, w, w, w),
        lambda: nn.cross_entropy(x, w, w, True),
        lambda: nn.mse_loss(x, x, True),
    ):
        with pytest.raises(TypeError, match="positional argument|normalized_shape is a shape"):
            call()
    with pytest.raises(ValueError, match=r"the weight has shape \(4,\), and normalized_shape is \(2, 4\)"):
        nn.layer_norm(x, (2, 4), w, w)


@pytest.mark.parametrize("wrong", [-1, 5])
async def test_an_index_outside_the_rows_fails_where_it_is_awaited(s, wrong):
    layer = nn.Embedding(5, 2)
    with pytest.raises(IndexError, match="embedding: the indices range from .*: use 0 to 4"):
        await layer(await s.put(np.array([0, wrong, 2])))
    with pytest.raises(ValueError, match="must be .count, width."):
        nn.embedding(asc.zeros(3, dtype=int), asc.ones(3))


async def test_on_a_card_what_is_no_row_fails_also_where_it_was_captured():
    with fake_cupy(5):
        async with asc.Scheduler("cuda") as s:
            layer, numbers = nn.Embedding(5, 2), await s.put(np.array([4, -1, 0]))
            with asc.no_grad():
                graph = await s.capture(layer, asc.maximum(numbers, 0))
            for call in (layer, graph):
                with pytest.raises(IndexError, match="from -1 to 4, but there are 5 rows"):
                    await call(numbers)
            found = await graph(asc.maximum(numbers, 0)).numpy()
            assert (found == (await layer.weight.numpy())[[4, 0, 0]]).all()
            del layer, graph, call, numbers


async def test_a_target_outside_the_classes_fails_where_it_is_awaited(s):
    loss = nn.cross_entropy(asc.zeros((2, 3)), await s.put(np.array([0, 7])))
    with pytest.raises(IndexError, match="range from 0 to 7, but there are 3 classes"):
        await loss


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
async def test_means_of_large_windows_are_rounded_little(s, dtype):
    array = (np.random.default_rng(0).random((1, 3, 224, 224)) * 1e-2 + 2000).astype(dtype)
    x = await s.put(array)
    x.requires_grad = True
    for y in (nn.avg_pool2d(x, 224), nn.avg_pool2d(x, 224, count_include_pad=False)):
        expected = array.mean(axis=(2, 3), keepdims=True, dtype=np.float64)
        np.testing.assert_allclose(await y, expected, rtol=20 * np.finfo(dtype).eps)
    y.sum().backward()
    np.testing.assert_allclose(await x.grad, np.full(array.shape, 1 / 224**2), rtol=1e-6)


@pytest.mark.parametrize("kernel", [1, 2, (3, 4), (4, 3), 5])
@pytest.mark.parametrize("dilation", [1, 2])
async def test_same_padding_keeps_the_size_and_pads_behind(s, kernel, dilation):
    images = await s.put(np.random.default_rng(0).normal(size=(2, 3, 9, 11)).astype(np.float32))
    layer = nn.Conv2d(3, 4, kernel, padding="same", dilation=dilation, rng=0)
    found = await layer(images)
    assert found.shape == (2, 4, 9, 11)
    rows, columns = [dilation * (length - 1) for length in layer.weight.shape[2:]]
    width = ((0, 0), (0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    padded = asc.pad(images, width)
    assert_allclose(found, await nn.conv2d(padded, layer.weight, layer.bias, dilation=dilation), rtol=1e-4, atol=1e-5)
    none = nn.conv2d(images, layer.weight, padding="valid", dilation=dilation)
    assert none.shape == nn.conv2d(images, layer.weight, dilation=dilation).shape
    line = nn.Conv1d(3, 2, 4, padding="same")(await s.put(np.ones((1, 3, 7), np.float32)))
    assert line.shape == (1, 2, 7)
    with pytest.raises(ValueError, match="padding='same' is for a stride of 1"):
        nn.Conv2d(3, 4, 3, stride=2, padding="same")(images)


async def test_a_model_prints_what_its_layers_were_told(s):
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Linear(2, 3))
    assert repr(model) == (
        "Sequential(0=Conv2d(weight=(2, 1, 3, 3), bias=(2,), stride=(2, 2), padding=(1, 1), dilation=(1, 1)),"
        " 1=MaxPool2d(kernel_size=(2, 2), stride=(2, 2), padding=(0, 0)), 2=Dropout(p=0.25),"
        " 3=Linear(weight=(3, 2), bias=(3,)))"
    )
    assert "padding='same'" in repr(nn.Conv1d(1, 1, 3, padding="same"))
    assert repr(nn.LayerNorm(4)) == "LayerNorm(weight=(4,), bias=(4,), normalized_shape=(4,), eps=1e-05)"
