"""Pictures of graphs: what is drawn, what is drawn as one, and that nothing covers anything else."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise

import pytest

from asyncsched.observe import Node, TaskGraph
from asyncsched.pictures.layers import Curve, layout

SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph: TaskGraph, most: int = 60) -> list[str]:
    """The names in the boxes."""
    return [text.text or "" for text in parsed(graph, most).iter(f"{SVG}text") if text.get("font-weight")]


def parsed(graph: TaskGraph, most: int = 60) -> ET.Element:
    return ET.fromstring(graph.svg(most))


def legend(graph: TaskGraph, most: int = 60) -> str:
    return "; ".join(text.text or "" for text in [*parsed(graph, most).iter(f"{SVG}g")][-1].iter(f"{SVG}text"))


def chain(length: int, *names: str) -> list[Node]:
    return [Node(names[i % len(names)], inputs=(i - 1,) if i else ()) for i in range(length)]


def test_a_box_says_everything_and_escapes_it():
    name = 'of <b>"mine"</b> & others, which is long'
    graph = TaskGraph(
        [
            Node("put", (3,), "float64", "done", "cpu"),
            Node(name, None, "", "failed", "", (0, 0), "/home/me/a.py:3 in f"),
        ]
    )
    root = parsed(graph)
    first, second = [box for box in root.iter(f"{SVG}g") if box.get("text-anchor")]
    assert [text.text for text in first.iter(f"{SVG}text")] == ["put", "(3,) float64"]
    assert [title.text for title in second.iter(f"{SVG}title")] == [f"{name}\nfailed\n/home/me/a.py:3 in f"]
    assert [text.text for text in second.iter(f"{SVG}text")] == ['of <b>"mine"</b> & \N{HORIZONTAL ELLIPSIS}', "a.py:3"]
    assert legend(graph) == "1 done; 1 failed"


def test_what_a_notebook_and_a_file_get(tmp_path):
    graph = TaskGraph([Node("put")])
    assert repr(graph) == "TaskGraph(1 task: 1 pending)"
    assert graph._repr_svg_() == graph.svg()
    assert graph.svg() in graph._repr_html_()
    graph.save(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text() == graph.svg()
    with pytest.raises(ValueError, match=r"the picture is SVG: save it as 'graph\.svg', not 'graph\.png'"):
        graph.save(tmp_path / "graph.png")
    assert repr(TaskGraph([])) == "TaskGraph(0 tasks)"
    assert drawn(TaskGraph([])) == []
    assert len(graph) == 1


def test_runs_and_equal_parts_are_drawn_once():
    times = "\N{MULTIPLICATION SIGN}"
    assert drawn(TaskGraph([Node("put"), *chain(1, "sum")])) == ["put", "sum"]
    run = [Node("put"), *[Node("add", inputs=(i,)) for i in range(100)]]
    assert drawn(TaskGraph(run)) == ["put", f"add {times}100"]
    assert len(drawn(TaskGraph(run[:60]))) == 60
    fan = [Node("put"), *[Node("add", inputs=(0,)) for _ in range(100)], Node("sum", inputs=tuple(range(1, 101)))]
    assert drawn(TaskGraph(fan)) == ["put", f"add {times}100", "sum"]
    apart = [Node(name, inputs=(i - 1,) if i % 2 else ()) for i in range(100) for name in [("put", "add")[i % 2]]]
    assert drawn(TaskGraph(apart)) == [f"put {times}50", f"add {times}50"]
    branches = [Node("put")]
    for _ in range(40):
        for i in range(5):
            branches.append(Node("add" if i < 4 else "exp", inputs=(len(branches) - 1 if i else 0,)))
    assert drawn(TaskGraph(branches)) == ["put", f"add {times}160", f"exp {times}40"]


def test_no_more_is_drawn_as_one_than_has_to_be():
    inputs = ((), (0,), (1,), (1,), (2, 3), (0,), (4, 5))
    graph = TaskGraph([Node(name, inputs=reads) for name, reads in zip("rkkkkkt", inputs, strict=True)])
    times = "\N{MULTIPLICATION SIGN}"
    assert drawn(graph, 6) == ["r", "k", f"k {times}2", "k", "k", "t"]
    assert sorted(drawn(graph, 5)) == ["k", f"k {times}4", "r", "t"]
    assert drawn(graph, 3) == ["r", f"k {times}5", "t"]


def test_of_a_long_chain_of_different_ones_the_first_are_drawn():
    graph = TaskGraph(chain(500, "add", "exp", "mul"))
    assert drawn(graph) == ["add", "exp", "mul"] * 20
    assert legend(graph) == "500 pending; 440 more are left out"


def test_the_last_are_left_out_of_what_is_too_large():
    random.seed(0)
    nodes = [Node(f"f{i}", inputs=tuple({random.randrange(i) for _ in range(2)}) if i else ()) for i in range(100)]
    graph = TaskGraph(nodes)
    assert len(drawn(graph)) == 60
    assert legend(graph) == "100 pending; 40 more are left out"
    assert len(drawn(graph, most=100)) == 100


@pytest.mark.parametrize("inputs", [(3,), (-1,), (0,)])
def test_what_is_no_graph_is_refused(inputs):
    with pytest.raises(ValueError, match="reads node|circle"):
        TaskGraph([Node("add", inputs=inputs)])


def test_a_large_graph_needs_no_stack():
    graph = TaskGraph([Node("add", inputs=(i + 1,) if i < 19_999 else ()) for i in range(20_000)])  # the last is first
    assert drawn(graph) == ["add \N{MULTIPLICATION SIGN}20,000"]


@pytest.mark.parametrize("seed", range(8))
def test_no_two_boxes_overlap_and_no_line_runs_through_one(seed):
    chance = random.Random(seed)
    inputs = [
        sorted({chance.randrange(max(0, i - 12), i) for _ in range(chance.randint(0, 3))} if i else ())
        for i in range(50)
    ]
    found = layout(inputs, 160, 40)
    for i, (x, y) in enumerate(found.places):
        assert 80 <= x <= found.width - 80 + 1e-6
        assert 20 <= y <= found.height - 20 + 1e-6
        assert all(abs(x - a) >= 160 - 1e-6 or abs(y - b) >= 40 - 1e-6 for a, b in found.places[:i])
    assert set(found.edges) == {(read, reader) for reader, reads in enumerate(inputs) for read in reads}
    for (_, reader), curve in found.edges.items():
        x, y = found.places[reader]
        assert curve[-1][1:] == pytest.approx((x - 80, y))
    for x, y in [point for curve in (*found.edges.values(), *found.shared) for point in along(curve)]:
        assert 0 <= x <= found.width
        assert 0 <= y <= found.height
        assert not [place for place in found.places if abs(x - place[0]) < 79 and abs(y - place[1]) < 20]


def along(curve: Curve) -> Iterator[tuple[float, float]]:
    """Points on it."""
    for (_, x, y), (bend, to_x, to_y) in pairwise(curve):
        for t in (i / 16 for i in range(17)):
            there, back = t * t * (3 - 2 * t), (1 - t) ** 3
            yield back * x + (1 - back - t**3) * bend + t**3 * to_x, (1 - there) * y + there * to_y


def binary_tree(count: int) -> list[list[int]]:
    return [[(i - 1) // 2] * (i > 0) for i in range(count)]


@pytest.mark.parametrize(
    "inputs",
    [
        [[]],
        [[], [0], [1], [2], [3]],
        [[i - 1] * (i > 0) for i in range(60)],  # as long as can be
        [[] for _ in range(60)],  # as wide as can be
        [[], *[[0]] * 40, list(range(1, 41))],
        [*[[] for _ in range(40)], list(range(40))],
        [[i - 1] * (i % 2) for i in range(60)],
        [[j for j in (i - 7, i - 6, i - 1) if j >= 0 and i % 7] for i in range(60)],
        binary_tree(31),
        [[i - 1] * (i > 0) for i in range(2000)],
        [[] for _ in range(2000)],
    ],
    ids=["one", "five", "long", "wide", "fan", "fan-in", "pairs", "woven", "tree", "2000 long", "2000 wide"],
)
def test_a_picture_is_wider_than_tall_and_reads_like_a_text(inputs):
    found = layout(inputs, 172, 58)
    assert found.width > found.height
    if len(inputs) == 60:
        assert found.width < 1250 or inputs[0] != inputs[8]  # as wide as a page
    for reader, reads in enumerate(inputs):
        for read in reads:
            (x, y), (to_x, to_y) = found.places[read], found.places[reader]
            assert to_x >= x + 172 or to_y >= y + 58


def test_a_box_has_its_line_and_what_is_no_line_is_in_its_title_alone():
    root = parsed(TaskGraph([Node("put", line="C:\\me\\a.py:3 in f"), Node("put", line="the start of a task")]))
    boxes = [box for box in root.iter(f"{SVG}g") if box.get("text-anchor")]
    assert [[text.text for text in box.iter(f"{SVG}text")] for box in boxes] == [["put", "a.py:3"], ["put"]]
    assert "the start of a task" in next(boxes[1].iter(f"{SVG}title")).text


def test_reads_of_one_thing_are_one_arrow_with_their_number():
    graph = TaskGraph([Node("put"), Node("multiply", inputs=(0, 0)), Node("add", inputs=(0, 1))])
    assert arrows(graph) == (3, ["\N{MULTIPLICATION SIGN}2"])
    fan = TaskGraph(
        [Node("put"), *[Node("add", inputs=(0,)) for _ in range(100)], Node("sum", inputs=(*range(1, 101),))]
    )
    assert arrows(fan) == (2, ["\N{MULTIPLICATION SIGN}100"] * 2)
    chain = TaskGraph([Node("put"), *[Node("add", inputs=(i,)) for i in range(100)]])
    assert arrows(chain) == (1, [])


def arrows(graph: TaskGraph) -> tuple[int, list[str]]:
    """How many there are, and what is written at them."""
    group = [*parsed(graph).iter(f"{SVG}g")][-2]
    return len(group.findall(f"{SVG}path")), [text.text or "" for text in group.iter(f"{SVG}text")]


def test_a_box_says_where_it_was_submitted_and_of_several_lines_none():
    graph = TaskGraph([Node("put", line="/a b/model.py:7 in f"), *[Node("add", line=f"a.py:{i}") for i in range(99)]])
    assert "model.py:7" in graph.svg()
    assert "a.py:0" not in graph.svg()
    long = Node("put", device="cuda:0", line="/x/" + "model" * 9 + ".py:12345 in g")
    texts = [text.text for text in parsed(TaskGraph([long, Node("add", device="cpu")])).iter(f"{SVG}text")]
    assert texts[1] == "\N{HORIZONTAL ELLIPSIS}delmodel.py:12345 cuda:0"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 19 + "\N{HORIZONTAL ELLIPSIS}"),
        ("\u7b97" * 10, "\u7b97" * 10),  # twice as broad
        ("\u7b97" * 11, "\u7b97" * 9 + "\N{HORIZONTAL ELLIPSIS}"),
        ("\x1b[31m\x00", "\ufffd[31m\ufffd"),
        ('</svg><&">', '</svg><&">'),
    ],
)
def test_a_name_is_cut_to_its_box_and_is_xml(name, shown):
    assert drawn(TaskGraph([Node(name)])) == [shown]
