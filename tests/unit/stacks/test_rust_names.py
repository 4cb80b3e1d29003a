"""Rust's names as text."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.rust_names import rust_name

PROGRAM = """
use std::collections::HashMap;
pub trait Go { fn go(&self) -> usize; }
pub struct Pair<T>(T);
impl<T: Clone> Go for Pair<Vec<T>> { #[inline(never)] fn go(&self) -> usize { self.0.len() } }
pub mod inner {
    #[inline(never)]
    pub fn sum<const N: usize>(x: &[u8; N], f: fn(u8) -> u32, t: (i32, &str), p: *const u8) -> u32 {
        let add = |y: u8| f(y) + N as u32;
        x.iter().map(|v| add(*v)).sum::<u32>() + t.0 as u32 + p as usize as u32
    }
}
#[inline(never)]
pub fn boxed(x: &mut dyn Iterator<Item = u32>, b: Box<dyn Fn(u8) + Send>) -> u32 { b(1); x.sum() }
#[inline(never)]
pub fn generic<F: Fn(&str) -> bool>(f: F) -> bool { f("x") }
fn main() {
    println!("{}", Pair(vec![1u8]).go());
    let mut map: HashMap<String, Pair<u8>> = HashMap::new();
    map.insert("x".into(), Pair(2));
    println!("{}", inner::sum(&[1, 2, 3], |x| x as u32, (1, "a"), std::ptr::null()));
    println!("{}", boxed(&mut map.values().map(|a| a.0 as u32), Box::new(|_| ())));
    println!("{}", generic(|s| s.len() > 1));
}
"""


@pytest.mark.parametrize(
    ("mangled", "text"),
    [
        ("_ZN4core3fmt5Write9write_str17h0123456789abcdefE", "core::fmt::Write::write_str"),
        (
            "_ZN39_$LT$T$u20$as$u20$a..B$LT$U$C$V$GT$$GT$2go17h0123456789abcdefE",
            "<T as a::B<U,V>>::go",
        ),
        ("_ZN3foo3bar17h0123456789abcdefE.llvm.1234567890", "foo::bar"),
        ("_RNvC6_123foo3bar", "123foo::bar"),
        ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
        ("_RNvMs_Cs1234_5crateNtB4_4Type3new", "<crate::Type>::new"),
        ("_RNvXCs1234_5crateNtB2_4TypeNtB2_5Trait2go", "<crate::Type as crate::Trait>::go"),
        ("_RINvCs1234_5crate3fooReE", "crate::foo::<&str>"),
        ("_RINvC5crate3fooAhj3_E", "crate::foo::<[u8; 3]>"),
        ("_RINvC5crate3fooTlmEE", "crate::foo::<(i32, u32)>"),
        ("_RINvC5crate3fooTlEE", "crate::foo::<(i32,)>"),
        ("_RINvC5crate3fooFUKCPhEuE", 'crate::foo::<unsafe extern "C" fn(*const u8)>'),
        ("_RINvC5crate3fooFlElE", "crate::foo::<fn(i32) -> i32>"),
        ("_RINvC5crate3fooDNtC4core4SendEL_E", "crate::foo::<dyn core::Send>"),
        ("_RINvC5crate3fooKb1_Kln5_Kc61_E", "crate::foo::<true, -5, 'a'>"),
        ("_RNCNvC5crate3foo0", "crate::foo::{closure#0}"),
        ("_RNCNvC5crate3foos_0", "crate::foo::{closure#1}"),
        ("_RNvC5crateu9maana_pta.llvm.42", "crate::mañana"),
    ],
)
def test_names_are_read(mangled, text):
    """Old ones without their hash, new ones by their grammar."""
    assert rust_name(mangled) == text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "main",
        "_R",
        "_RNv",
        "_R1NvC1a1b",
        "_ZN3foo3barEv",
        "_ZN3foo17h0123456789abcdeE",
        "_ZN99foo17h0123456789abcdefE",
        "_RNvB_3foo",
        "_RNvC5crate9foo",
        "_RINvC5crate3fooKxzz_E",
        "_RNvC5crate" + "9" * 5000,
        "_R" + "NvNv" * 1000 + "C1a" + "1b" * 2000,
    ],
)
def test_what_follows_no_grammar_has_no_text(name):
    """It stays as it is."""
    assert rust_name(name) is None


def test_a_name_that_refers_to_itself_ends():
    """Each tuple holds the one before it twice, so sixty are 2^60 characters."""
    name = "_RINvC1a1bTllE"
    position = len("INvC1a1b")
    for _ in range(60):
        digits = base_62(position)
        following = len(name) - len("_R")
        name += f"TB{digits}B{digits}E"
        position = following
    assert rust_name(name + "E") is None
    assert rust_name("_RINvC1a1bTllETB7_B7_EE") == "a::b::<(i32, i32), ((i32, i32), (i32, i32))>"


def base_62(number):
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = ""
    number -= 1
    while True:
        text = digits[number % 62] + text
        number //= 62
        if not number:
            return f"{text}_"


@given(st.text("RNvCMXYIBTEDFKLps0123456789_abcdlhux", max_size=200))
def test_noise_is_read_or_not(noise):
    """And nothing else happens."""
    text = rust_name(f"_R{noise}")
    assert text is None or len(text) <= 4096


@pytest.mark.skipif(shutil.which("rustc") is None, reason="rustc makes the names")
def test_names_of_a_real_program_are_those_of_binutils(tmp_path):
    """Apart from what is left out on purpose: hashes, lifetimes, and the types of constants."""
    source, program = tmp_path / "names.rs", tmp_path / "names"
    source.write_text(PROGRAM)
    flags = ["-C", "symbol-mangling-version=v0", "-C", "opt-level=1"]
    built = subprocess.run(
        ["rustc", *flags, "-o", program, source], capture_output=True, check=False
    )
    if built.returncode:
        pytest.skip("this compiler does not know the mangling")
    listed = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split() if re.match(r"_R|_ZN.*17h[0-9a-f]{16}E$", name)]
    texts = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert len(names) > 100
    left_out = r"\[[0-9a-f]{16}\]|::h[0-9a-f]{16}$|for<[^>]*> |<'\w+>|'\w+ | \+ '\w+|(?<=\d): \w+"
    for name, text in zip(names, texts, strict=True):
        assert rust_name(name) == re.sub(left_out, "", text)
