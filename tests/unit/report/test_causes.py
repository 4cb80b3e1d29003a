"""The tree of causes: one walk, whichever form it is written in."""

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.explain.chains import Cause, Culprit
from otel_gpu.report.causes import rank_of, walk, write_tree

ONE, TWO = Culprit(1, 1, "one"), Culprit(2, 2, "two")


def cause(kind, *via, culprit=None):
    return Cause(kind, 1, 0.1, culprit, (), via)


TREE = (
    cause("a", cause("b", cause("c"), culprit=TWO), cause("d"), culprit=ONE),
    cause("e"),
    cause("f", cause("g")),
)


def test_each_cause_comes_before_its_own():
    """With how many threads were followed to it, and whose time it is."""
    assert [(step.cause.kind, step.depth, step.thread) for step in walk(TREE)] == [
        ("a", 0, None),
        ("b", 1, ONE),
        ("c", 2, TWO),
        ("d", 1, ONE),
        ("e", 0, None),
        ("f", 0, None),
        ("g", 1, None),
    ]


def test_a_walk_can_be_kept_short():
    """No more than so many of an effect, and of each cause."""
    assert [step.cause.kind for step in walk(TREE, most=1)] == ["a", "b", "c"]


def test_a_tree_is_written_from_its_leaves():
    """Each form is made of those below it, in order."""
    written = write_tree(TREE, lambda step, inner: f"{step.cause.kind}({''.join(inner)})")

    assert written == ["a(b(c())d())", "e()", "f(g())"]


trees = st.recursive(
    st.builds(cause, st.text(max_size=2)),
    lambda inner: st.builds(
        lambda kind, via: cause(kind, *via), st.text(max_size=2), st.lists(inner, max_size=3)
    ),
    max_leaves=20,
)


@given(st.lists(trees, max_size=4))
def test_a_tree_that_is_written_is_the_tree(causes):
    """Whatever its form, nothing is lost and nothing changes its place."""
    written = write_tree(causes, lambda step, inner: step.cause._replace(via=tuple(inner)))

    assert written == causes


def test_what_is_no_severity_is_behind_all():
    """A name in a stranger's recording may be anything."""
    assert [rank_of(name) for name in ("high", "medium", "low", "<b>")] == [0, 1, 2, 3]
