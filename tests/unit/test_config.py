"""The configuration: what is read from where, and what is refused."""

import logging
import os

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.config import OPTIONS, Config, load
from otel_gpu.errors import ConfigError

NOTHING = {}


def load_yaml(tmp_path, text, environ=NOTHING, overrides=NOTHING):
    path = tmp_path / "otel-gpu.yaml"
    path.write_text(text)
    return load(path, environ, overrides)


def test_nothing_set_gives_the_defaults():
    """An operator who sets nothing gets the documented defaults."""
    config = load(None, NOTHING, NOTHING)

    assert config == Config()
    assert config.capture.ring_buffer_bytes == 8_388_608
    assert config.spans.mode == "chosen"
    assert config.export.otlp_file is None


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path):
    """Each source is overridden by the one closer to the operator, option by option."""
    text = "spans: {mode: none, slow_floor_us: 1, stall_floor_ms: 1, sample_one_in: 7}"
    environ = {"OTEL_GPU_SPANS_MODE": "chosen", "OTEL_GPU_SPANS_SLOW_FLOOR_US": "2"}

    spans = load_yaml(tmp_path, text, environ, {"spans.mode": "full"}).spans

    assert (spans.mode, spans.slow_floor_us, spans.stall_floor_ms) == ("full", 2.0, 1.0)
    assert spans.sample_one_in == 7


def test_a_flag_that_was_not_given_overrides_nothing(tmp_path):
    """None from the command line means "not given", never "none"."""
    config = load_yaml(
        tmp_path, "export: {otlp_file: out.jsonl}", NOTHING, {"export.otlp_file": None}
    )

    assert config.export.otlp_file == "out.jsonl"


def test_the_environment_names_the_file(tmp_path):
    """A service finds its file by OTEL_GPU_CONFIG where no flag names one."""
    path = tmp_path / "c.yaml"
    path.write_text("log: {level: debug}")

    assert load(None, {"OTEL_GPU_CONFIG": str(path)}, NOTHING).log.level == "debug"


@pytest.mark.parametrize("text", ["", "# nothing\n", "spans:\n", "{}"])
def test_empty_files_and_sections_are_fine(tmp_path, text):
    """A section that was commented out is as good as one that is not there."""
    assert load_yaml(tmp_path, text) == Config()


def test_an_empty_variable_is_not_set():
    """OpenTelemetry treats an empty variable as unset, and so do we."""
    assert load(None, {"OTEL_GPU_SPANS_MODE": ""}, NOTHING).spans.mode == "chosen"


def test_every_option_can_be_set_by_its_variable():
    """A value written out as text reaches the option with its own type."""
    for option in OPTIONS.values():
        value = {
            "integer": option.default,
            "number": min(1.5, option.bounds[1]) if option.bounds else 1.5,
            "list of numbers": (1.0, 2.5),
            "true or false": not option.default,
            "text": option.choices[-1] if option.choices else "some text:1",
        }[option.kind]
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        environ = {option.variable: text}
        if option.section == "histograms":
            environ["OTEL_GPU_HISTOGRAMS_LAYOUT"] = "explicit"

        config = load(None, environ, NOTHING)

        assert getattr(getattr(config, option.section), option.name) == value


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("span: {}", "unknown section 'span'", "did you mean spans?"),
        ("spans: {mod: full}", "unknown key spans.mod", "did you mean mode?"),
        ("spans: {zzzzzz: 1}", "unknown key spans.zzzzzz", ""),
        (
            "spans: {mode: ful}",
            "spans.mode: must be one of chosen, full, none, not 'ful'",
            "did you mean full?",
        ),
        (
            "capture: {max_threads: 1}",
            "capture.max_threads: must be an integer from 64 to 1048576, not 1",
            "",
        ),
        (
            "capture: {max_threads: 100.5}",
            "capture.max_threads: must be an integer from 64 to 1048576, not 100.5",
            "",
        ),
        (
            "capture: {max_threads: yes}",
            "capture.max_threads: must be an integer from 64 to 1048576, not True",
            "",
        ),
        (
            "capture: {open_call_limit_s: .nan}",
            "capture.open_call_limit_s: must be a number from 0.1 to 86400, not nan",
            "",
        ),
        (
            "capture: {ring_buffer_bytes: 100000}",
            "capture.ring_buffer_bytes: must be a power of two (100000)",
            "",
        ),
        ("explain: {enabled: 1}", "explain.enabled: must be true or false, not 1", ""),
        ("capture: [1]", "capture: must be a mapping of keys to values", ""),
        ("- 1", "must be a mapping of keys to values", ""),
        ("spans: {mode: null}", "spans.mode: must be one of chosen, full, none, not None", ""),
        (
            "histograms: {layout: explicit, duration_bounds_s: [2, 1]}",
            "histograms.duration_bounds_s: must rise from each bound to the next ([2.0, 1.0])",
            "",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_key(tmp_path, text, message, hint):
    """A message says where, what was expected and what was found; a hint says what was meant."""
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path, text)

    said = str(caught.value).replace("(2.0, 1.0)", "[2.0, 1.0]")
    assert said == f"{tmp_path}/otel-gpu.yaml: {message}"
    assert caught.value.hint == hint
    assert caught.value.exit_code == 2


def test_a_wrong_variable_is_named():
    """The message names the variable, since no file is involved."""
    with pytest.raises(ConfigError, match=r"^OTEL_GPU_CAPTURE_MAX_SERIES: must be an integer"):
        load(None, {"OTEL_GPU_CAPTURE_MAX_SERIES": "many"}, NOTHING)


def test_a_switch_is_true_or_false():
    """Any other word is refused: nobody knows whether "off" was meant as "no"."""
    assert not load(None, {"OTEL_GPU_EXPLAIN_ENABLED": "False"}, NOTHING).explain.enabled
    with pytest.raises(ConfigError, match=r"must be true or false, not 'off'"):
        load(None, {"OTEL_GPU_EXPLAIN_ENABLED": "off"}, NOTHING)


def test_a_wrong_flag_is_named():
    """The message names the flag as the operator typed it."""
    with pytest.raises(ConfigError, match=r"^--spans: must be one of chosen, full, none"):
        load(None, NOTHING, {"spans.mode": "all"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    """A configuration that was asked for and cannot be read is an error."""
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file or directory"):
        load(tmp_path / "absent.yaml", NOTHING, NOTHING)


def test_broken_yaml_says_where(tmp_path):
    """The parser's own line and column reach the operator, on one line."""
    with pytest.raises(ConfigError, match=r"is not valid YAML: .*line 1, column") as caught:
        load_yaml(tmp_path, "spans: {mode: full")

    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match="pipe: is not a file"):
        load(tmp_path / "pipe", NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spans: " + "[" * 3000 + "]" * 3000, "is nested too deeply"),
        ("# " + "x" * (1 << 20), "has more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_would_take_much_to_read_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_yaml(tmp_path, text)


def test_a_value_that_is_large_when_written_out_is_not_written_out(tmp_path):
    """Thirty lists of ten references each are 10^30 items."""
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    text = "\n".join(["spans:", "  mode:", "    a0: &a0 x", *(f"    {line}" for line in lists)])

    with pytest.raises(ConfigError, match="mode: must be one of") as refused:
        load_yaml(tmp_path, text)

    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "value", ["!!int a", "!!int ''", "!!bool a", "!!timestamp a", "!!float a", "!!float ''"]
)
def test_a_tag_that_does_not_fit_is_refused(tmp_path, value):
    """What makes a value of a tag raises what it comes upon, and no error of YAML."""
    with pytest.raises(ConfigError, match="is not valid YAML: "):
        load_yaml(tmp_path, f"spans:\n  mode: {value}\n")


def test_yaml_cannot_make_objects(tmp_path):
    """A configuration file is data; a tag that asks for code is refused."""
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_yaml(tmp_path, "spans: !!python/object/apply:os.getcwd []")


def test_bounds_without_the_layout_that_uses_them_contradict(tmp_path):
    """Bounds that would be ignored are an error, not a surprise in the backend."""
    with pytest.raises(
        ConfigError, match=r"duration_bounds_s is set, but .* exponential"
    ) as caught:
        load_yaml(tmp_path, "histograms: {duration_bounds_s: [0.1]}")

    assert caught.value.hint == "set histograms.layout to explicit, or leave the bounds out"


def test_a_batch_has_to_fit_into_the_queue(tmp_path):
    """A queue smaller than one batch could never send anything."""
    with pytest.raises(ConfigError, match=r"batch_bytes \(3500000\) is larger than"):
        load_yaml(tmp_path, "export: {queue_bytes: 2000000}")


def test_an_unknown_variable_is_warned_about_and_the_nearest_suggested(caplog):
    """It may belong to another program, so it is no error; a slip is pointed out all the same."""
    environ = {"OTEL_GPU_SPANS_MOD": "full", "OTEL_GPU_TEST_REQUIRE": "kernel", "OTHER": "1"}
    environ["OTEL_GPU_MCP_TOKEN"] = "secret"  # noqa: S105 -- no secret
    with caplog.at_level(logging.WARNING):
        load(None, environ, NOTHING)

    assert [record.getMessage() for record in caplog.records] == [
        "OTEL_GPU_SPANS_MOD is not known and has no effect; did you mean OTEL_GPU_SPANS_MODE?"
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["capture", "spans", "histograms", "export", "explain", "log", "other"]),
    VALUES
    | st.dictionaries(st.sampled_from([o.name for o in OPTIONS.values()]), VALUES, max_size=3),
    max_size=3,
)


@given(document=DOCUMENTS)
def test_any_document_is_either_accepted_or_refused_in_words(tmp_path_factory, document):
    """Whatever YAML holds, the outcome is a whole configuration or a ConfigError."""
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        config = load(path, NOTHING, NOTHING)
    except ConfigError as error:
        said = str(error)
    else:
        said = ""
        for option in OPTIONS.values():
            value = getattr(getattr(config, option.section), option.name)
            kind = str | None if option.default is None else type(option.default)
            assert isinstance(value, kind)

    assert not said or str(path) in said or "is set, but" in said or "is larger than" in said
