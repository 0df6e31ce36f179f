"""Kernel names: whole where short, readable where long."""

from __future__ import annotations

import pytest

from grape.profiling.names import short_name

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul>)"
)
UNROLLED = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4, "
    "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::"
    "LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int, float)"
)
CUTLASS = "cutlass_80_tensorop_f16_s16816gemm_relu_f16_64x64_32x6_tn_align8_with_a_long_suffix_that_goes_on_v1"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("void short<int>(float*)", "void short<int>(float*)"),
        (ELEMENTWISE, "vectorized_elementwise_kernel<4, CUDAFunctor_add<Half>, array<char*, 3ul> >"),
        (UNROLLED, "unrolled_elementwise_kernel<...>"),
        (CUTLASS, CUTLASS[:77] + "..."),
    ],
)
def test_short_name(name: str, shown: str) -> None:
    assert short_name(name) == shown


def test_template_arguments_go_from_the_innermost_out() -> None:
    name = "void ns::outer<ns::middle<ns::inner<int, long, unsigned long long> > >(int)"
    assert short_name(name, limit=60) == "outer<middle<inner<int, long, unsigned long long> > >"
    assert short_name(name, limit=50) == "outer<middle<inner<...> > >"
    assert short_name(name, limit=26) == "outer<middle<...> >"
    assert short_name(name, limit=18) == "outer<...>"


def test_anonymous_namespaces_and_parameters_go_first() -> None:
    name = "void at::native::(anonymous namespace)::softmax_forward<float>(float*, float const*, int)"
    assert short_name(name, limit=40) == "softmax_forward<float>"


@pytest.mark.parametrize("limit", [10, 20, 40, 80])
@pytest.mark.parametrize("name", [ELEMENTWISE, UNROLLED, CUTLASS, "a<" * 100, ">" * 100, "(" * 100, ")" * 100])
def test_never_longer_than_asked(name: str, limit: int) -> None:
    assert 0 < len(short_name(name, limit)) <= limit


def test_mangled_names_are_demangled() -> None:
    assert short_name("_Z4workPf", demangle={"_Z4workPf": "work(float*)"}.__getitem__) == "work(float*)"
    assert short_name("work", demangle=lambda _: "never") == "work"
