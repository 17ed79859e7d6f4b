"""Fair sharing by itself: what each member got when it could go, came back, was passed over, or others came."""

from __future__ import annotations

from collections import Counter, deque
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncsched._core.tenants import FairQueue, Member


class Account(Member):
    def __init__(self, name: str, costs: list[float] | None = None, weight: float = 1) -> None:
        super().__init__(weight)
        self.name = name
        self.costs = deque(costs or [])
        self.able = True


def queue_of(*members: Account, **options: float) -> FairQueue[Account]:
    queue = FairQueue[Account](**options)
    for member in members:
        queue.join(member)
    return queue


def serve(queue: FairQueue[Account]) -> Account | None:
    """The first that can go does; who has nothing left leaves."""
    for member in queue:
        if not member.costs:
            queue.leave(member)
        elif member.able:
            queue.charge(member, member.costs.popleft())
            return member
    return None


def order(queue: FairQueue[Account], most: int = 10_000) -> str:
    served = []
    while len(served) < most and (member := serve(queue)) is not None:
        served.append(member.name)
    return "".join(served)


def test_equal_costs_go_one_after_the_other_in_the_order_of_coming():
    assert order(queue_of(Account("a", [1] * 3), Account("b", [1] * 2), Account("c", [1] * 3))) == "abcabcac"


def test_shares_are_by_cost_over_weight():
    queue = queue_of(Account("a", [3] * 30), Account("b", [1] * 90), Account("c", [1] * 270, 3))
    assert Counter(order(queue, 195)) == {"a": 15, "b": 45, "c": 135}


def test_a_weight_may_change_at_any_time():
    heavy = Account("a", [1] * 40)
    queue = queue_of(heavy, Account("b", [1] * 40))
    assert order(queue, 6) == "ababab"
    heavy.weight = 3
    assert Counter(order(queue, 12)) == {"a": 9, "b": 3}


def test_alone_there_is_neither_credit_nor_debt():
    queue = queue_of(Account("a", [1] * 50))
    order(queue, 40)
    queue.join(Account("b", [1] * 4))
    assert order(queue, 8) == "babababa"


def test_a_member_passed_over_is_asked_first_and_has_saved_nothing_up():
    blocked = Account("a", [1] * 5)
    blocked.able = False
    queue = queue_of(blocked, Account("b", [1] * 50))
    assert order(queue, 20) == "b" * 20
    blocked.able = True
    assert order(queue, 8) == "abababab"


def test_nobody_goes_where_nobody_can():
    members = [Account(name, [1]) for name in "abc"]
    queue = queue_of(*members)
    for member in members:
        member.able = False
    assert order(queue) == ""
    assert [member.name for member in queue] == ["a", "b", "c"]


def test_a_member_that_was_away_has_saved_nothing_up():
    away = Account("a", [1])
    queue = queue_of(away, Account("b", [1] * 60))
    assert order(queue, 30) == "a" + "b" * 29
    away.costs.extend([1] * 5)
    queue.join(away)
    assert order(queue, 8) == "abababab"


def test_a_debt_is_remembered_though_its_member_left():
    large = Account("a", [7])
    queue = queue_of(Account("b", [1] * 20), large)
    assert order(queue, 2) == "ba"
    queue.leave(large)
    large.costs.append(1)
    queue.join(large)
    assert order(queue, 8) == "b" * 6 + "ab"


def test_a_member_that_comes_with_one_thing_after_another_gets_its_share():
    """Each time it comes back only after another has gone."""
    serial, queue = Account("s"), queue_of(Account("a", [1] * 50), Account("b", [1] * 50))
    served = []
    for _ in range(30):
        member = serve(queue)
        assert member is not None
        served.append(member.name)
        if not serial.costs and member is not serial:
            serial.costs.append(1)
            queue.join(serial)
    assert Counter(served)["s"] >= 10


@pytest.mark.parametrize(("quantum", "most"), [(float("inf"), 6), (1, 300)])
def test_newcomers_without_end_starve_nobody(quantum, most):
    """Nor one that is in debt: the clock gets there, in half quanta or half of what newcomers get."""
    queue = queue_of(Account("p", [50, 50]), Account("b", [50] * 3), quantum=quantum)
    served = []
    for _ in range(2 * most):
        queue.join(Account("new", [50]))
        member = serve(queue)
        assert member is not None
        served.append(member.name)
    assert served.index("p", 1) <= most


def test_a_newcomer_waits_for_a_quantum_at_most():
    large, small = Account("l", [1000] * 2), Account("s", [1] * 10)
    queue = queue_of(large, small, quantum=1)
    assert order(queue, 2) == "ls"
    queue.join(Account("n", [1] * 4))
    assert order(queue, 4) == "nsns"


def test_joining_twice_changes_nothing():
    member = Account("a", [1, 1])
    queue = queue_of(member, member, Account("b", [1]))
    assert len(queue) == 2
    assert order(queue) == "aba"
    assert not member.joined


def test_the_current_member_may_leave_while_the_queue_is_walked():
    queue = queue_of(*[Account(name, [1] if name in "cf" else []) for name in "abcdef"])
    assert order(queue) == "cf"
    assert len(queue) == 0


costs = st.integers(0, 50).map(lambda cost: 1 + cost / 4)
event = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 4), st.lists(costs, min_size=1, max_size=5)),
    st.tuples(st.just("able"), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("weight"), st.integers(0, 4), st.sampled_from([0.25, 1, 2, 7.5])),
    st.tuples(st.just("serve"), st.integers(1, 8), st.none()),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.lists(event, max_size=60), st.sampled_from([0.5, 1, float("inf")]))
def test_the_shares_of_two_members_that_can_always_go_differ_little(events, quantum):
    """By one item of each, and half of a quantum or of the largest item, whatever others do."""
    members = [Account(str(i)) for i in range(5)]
    queue: FairQueue[Account] = FairQueue(quantum)
    got, largest = dict.fromkeys(members, 0.0), dict.fromkeys(members, 0.0)
    leads: dict[tuple[Account, Account], tuple[float, float]] = {}

    def able(member: Account) -> bool:
        return bool(member.costs) and member.able

    for what, which, value in events:
        member = members[which % 5]
        if what == "push":
            member.costs.extend(value)
            queue.join(member)
        elif what == "able":
            member.able = value
        elif what == "weight":
            member.weight = value
        for _ in range(which if what == "serve" else 0):
            before = [m for m in members if able(m)]
            leads = {pair: leads.get(pair, (got[pair[0]] - got[pair[1]],) * 2) for pair in combinations(before, 2)}
            front = {m: m.costs[0] for m in before}
            served = serve(queue)
            assert (served is None) == (not before)
            if served is None:
                break
            share = front[served] / served.weight
            got[served] += share
            largest[served] = max(largest[served], share)
            for (one, other), (least, most) in leads.items():
                lead = got[one] - got[other]
                least, most = leads[one, other] = min(least, lead), max(most, lead)
                apart = 2 * min(quantum, max(largest.values())) / 2
                assert most - least <= largest[one] + largest[other] + apart + 1e-6
            leads = {pair: lead for pair, lead in leads.items() if all(map(able, pair))}
