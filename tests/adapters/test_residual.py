"""Residuals: form, sum, and recompression."""

import pytest
import torch

from fedlora.adapters import AdapterError, Factors, Residual, add, exact_mean

GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _seed() -> None:
    GENERATOR.manual_seed(5)


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR).to(dtype)


def thin(out: int = 40, inner: int = 72, rank: int = 6, dtype: torch.dtype = torch.float64):
    return Residual(normal(out, rank, dtype=dtype), normal(rank, inner, dtype=dtype))


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    return bool((one.double() - other.double()).norm() <= tolerance * other.double().norm())


def test_factors_and_dense_are_the_same_matrix() -> None:
    factored = thin()
    dense = Residual(factored.matrix())
    x = normal(72, 3)
    assert factored.shape == dense.shape == (40, 72)
    assert (factored.rank, dense.rank) == (6, 40)
    assert factored.nbytes == 8 * 6 * (40 + 72)
    assert dense.nbytes == 8 * 40 * 72
    assert close(factored.apply(x), dense.apply(x), 1e-14)
    assert close(factored.transposed.matrix(), dense.matrix().T, 1e-15)
    assert close(dense.transposed.matrix(), dense.matrix().T, 0.0)


def test_shapes_that_do_not_multiply_are_refused() -> None:
    for u, v in ((normal(4, 3), normal(2, 5)), (normal(4), None), (normal(4, 3), normal(3))):
        with pytest.raises(AdapterError, match="residual factors do not multiply"):
            Residual(u, v)


def test_the_smaller_form_is_dense_exactly_where_factors_are_larger() -> None:
    # 40 x 72: factors of rank q hold 112 q numbers, the matrix 2880, so 25 is the last thin rank.
    for rank, stays in ((24, True), (25, True), (26, False), (60, False)):
        residual = thin(rank=rank)
        smaller = residual.smaller_form()
        assert (smaller is residual) == stays
        assert (smaller.v is not None) == stays
        assert smaller.nbytes == min(residual.nbytes, 8 * 40 * 72)
        assert close(smaller.matrix(), residual.matrix(), 1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_is_exact_in_either_form(dtype: torch.dtype) -> None:
    first, second, third = (thin(rank=rank, dtype=dtype) for rank in (3, 5, 30))
    expected = first.matrix() + second.matrix()
    stacked = add([first, second])
    assert (stacked.rank, stacked.u.dtype) == (8, dtype)
    assert close(stacked.matrix(), expected, 1e-15)
    for parts in ([first, second, third], [Residual(first.u @ first.v), second, third]):
        total = add(parts)
        assert total.v is None
        assert close(total.matrix(), expected + third.matrix(), 10 * torch.finfo(dtype).eps)
    assert close(add([first]).matrix(), first.matrix(), 0.0)


def test_residuals_of_different_modules_do_not_add() -> None:
    with pytest.raises(AdapterError, match="one common shape"):
        add([])
    with pytest.raises(AdapterError, match=r"one common shape.*\(40, 72\), \(72, 40\)"):
        add([thin(), thin(72, 40)])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-7), (torch.float64, 1e-12)], ids=str
)
@pytest.mark.parametrize("shape", [(40, 72), (72, 40), (192, 576)])
def test_recompression_keeps_the_matrix(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    residual = thin(*shape, rank=12, dtype=dtype)
    made, dropped = residual.recompressed()
    assert (made.rank, made.u.dtype, dropped) == (12, dtype, 0.0)
    assert made.u.is_contiguous()
    assert made.v.is_contiguous()
    assert close(made.matrix(), residual.matrix(), tolerance)
    values = torch.linalg.svdvals(residual.matrix())[:12]  # both factors carry half of each
    for gram in (made.u.double().T @ made.u.double(), made.v.double() @ made.v.double().T):
        assert close(gram, torch.diag(values), 1e-6)


@pytest.mark.parametrize("rank", [1, 5, 11, 12, 50])
@pytest.mark.parametrize("dense", [False, True])
def test_a_rank_cut_is_the_best_one_and_says_what_it_dropped(rank: int, dense: bool) -> None:
    residual = thin(rank=12)
    u, s, v = torch.linalg.svd(residual.matrix(), full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ v[:rank]
    made, dropped = (Residual(residual.matrix()) if dense else residual).recompressed(rank)
    assert made.rank == min(rank, 12)
    assert close(made.matrix(), best, 1e-9)
    assert dropped == pytest.approx(float(s[rank:].square().sum() / s.square().sum()), abs=1e-12)
    lost = (residual.matrix() - made.matrix()).norm() / residual.matrix().norm()
    assert float(lost**2) == pytest.approx(dropped, abs=1e-12)


@pytest.mark.parametrize("shape", [(24, 60), (60, 24)])
def test_a_dense_matrix_becomes_factors_of_its_rank(shape: tuple[int, int]) -> None:
    residual = Residual(thin(*shape, rank=7).matrix().float())
    made, dropped = residual.recompressed()
    assert made.v is not None
    assert made.shape == shape
    assert close(made.matrix(), residual.u, 3e-7)
    assert dropped < 1e-13


def test_a_consumed_residual_gives_its_memory_to_the_result() -> None:
    residual = thin(rank=12, dtype=torch.float32)
    plain, _ = residual.recompressed()
    place = residual.u.data_ptr()
    made, _ = residual.recompressed(consume=True)
    assert made.u.data_ptr() == place
    assert torch.equal(made.u, plain.u)
    assert torch.equal(made.v, plain.v)
    dense = Residual(thin(rank=12).matrix())
    before = dense.u.clone()
    dense.recompressed(consume=True)
    assert torch.equal(dense.u, before)


def test_zero_and_empty_matrices_have_no_factors_left() -> None:
    zero = torch.zeros(40, 6), torch.zeros(6, 72)
    some = normal(40, 6, dtype=torch.float32), normal(6, 72, dtype=torch.float32)
    one_node = exact_mean([Factors(*some, scale=2.0)], [1.0])[1]
    for residual in (
        Residual(*zero),
        Residual(some[0], zero[1]),  # frozen A: all its contrasts vanish
        Residual(zero[0], some[1]),
        Residual(torch.zeros(40, 72)),
        one_node,
    ):
        for rank in (None, 4):
            made, dropped = residual.recompressed(rank)
            assert (made.rank, made.shape, dropped) == (0, (40, 72), 0.0)
            assert not made.matrix().any()


def test_the_result_depends_on_the_product_alone() -> None:
    """Another split of the same product, (u g)(g^-1 v), ends in the same factors but for signs."""
    residual = thin(rank=8)
    g = normal(8, 8)
    other = Residual(residual.u @ g, torch.linalg.solve(g, residual.v))
    (one, _), (two, _) = residual.recompressed(), other.recompressed()
    signs = (one.u * two.u).sum(0).sign()
    assert close(two.u * signs, one.u, 1e-9)
    assert close(two.v * signs[:, None], one.v, 1e-9)


def test_no_nodes_factors_stand_in_a_recompressed_residual() -> None:
    """Before it, a contrast of two nodes is parallel to the difference of what they sent."""
    one, two = (Factors(normal(40, 6), normal(6, 72), 2.0) for _ in range(2))
    residual = exact_mean([one, two], [1.0, 3.0])[1]
    difference = torch.nn.functional.normalize(one.b - two.b, dim=0)

    def alike(u: torch.Tensor) -> float:
        return float((torch.nn.functional.normalize(u, dim=0).T @ difference).abs().max())

    assert alike(residual.u) == pytest.approx(1.0)
    assert alike(residual.recompressed()[0].u) < 0.95


def test_directions_that_repeat_or_cancel_are_gone() -> None:
    residual = thin(rank=4, dtype=torch.float32)
    twice = Residual(torch.cat([residual.u, residual.u], 1), torch.cat([residual.v, residual.v]))
    made, _ = twice.recompressed()
    assert made.rank == 4
    assert close(made.matrix(), 2 * residual.matrix(), 2e-7)
    more = thin(rank=2, dtype=torch.float32)
    cancelled = Residual(
        torch.cat([residual.u, more.u, -residual.u], 1), torch.cat([residual.v, more.v, residual.v])
    )
    made, _ = cancelled.recompressed()
    assert made.rank == 2
    assert close(made.matrix(), more.matrix(), 1e-6)


def test_directions_of_very_different_size_survive() -> None:
    """Gram matrices square the spread; float64 holds the square of what float32 holds."""
    sizes = torch.logspace(0, -6, 8, dtype=torch.float64)
    residual = Residual((normal(60, 8) * sizes).float(), normal(8, 50, dtype=torch.float32))
    made, _ = residual.recompressed()
    assert made.rank == 8
    smallest = torch.linalg.svdvals(residual.matrix())[7]
    assert torch.linalg.svdvals(made.matrix())[7] == pytest.approx(float(smallest), rel=0.1)
    assert close(made.matrix(), residual.matrix(), 2e-7)
    swapped, _ = residual.transposed.recompressed()
    assert close(swapped.matrix(), residual.matrix().T, 2e-7)
