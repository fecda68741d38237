"""The one door to a solver: PuLP 3.3 and 4 behave the same behind it (docs/explanation/fleet-program.md, section 4)."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pdplan.errors import InputError, SolverError

__all__ = ["Outcome", "Program"]

Proof = Literal["optimal", "feasible", "infeasible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a solve gave; `value` maps variable names to numbers (empty where infeasible)."""

    proof: Proof
    objective: float
    bound: float
    gap: float
    value: dict[str, float]
    time_s: float


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Native banners bypass sys.stdout: point descriptor 1 at descriptor 2 for the time of a solve."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # no descriptor 1 at all
        yield
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class Program:
    """A minimisation built row by row. Names are zero-padded so that both PuLP versions keep one order."""

    def __init__(self) -> None:
        import pulp

        self._pulp = pulp
        self.problem: Any = pulp.LpProblem("fleet", pulp.LpMinimize)
        self._variables: dict[str, Any] = {}
        self._rows = 0
        self.row_names: list[str] = []

    def variable(self, low: float = 0.0, high: float | None = None, *, integer: bool = False, label: str = "v") -> str:
        """Add a variable; returns its name."""
        name = f"x{len(self._variables):06d}_{label}"
        self._variables[name] = self.problem.add_variable(name, low, high, "Integer" if integer else "Continuous")
        return name

    def _sum(self, terms: Iterable[tuple[str, float]]) -> Any:
        merged: dict[str, float] = {}
        for name, coefficient in terms:
            merged[name] = merged.get(name, 0.0) + coefficient
        pairs = [(self._variables[name], coefficient) for name, coefficient in merged.items() if coefficient != 0.0]
        if hasattr(self._pulp, "lpSum_vars_coefs"):
            return self._pulp.lpSum_vars_coefs(pairs)
        return self._pulp.LpAffineExpression(pairs)

    def row(
        self, label: str, terms: Sequence[tuple[str, float]], sense: Literal["<=", ">=", "=="], right: float
    ) -> None:
        """Add a constraint: sum of terms, sense, right side."""
        if not terms:  # a row of constants: kept as a row, so that what cannot be is found infeasible, not lost
            terms = [(self.variable(0, 0, label="none"), 1.0)]
        left = self._sum(terms)
        constraint = left <= right if sense == "<=" else left >= right if sense == ">=" else left == right
        name = f"r{self._rows:06d}_{label}"
        self.problem.addConstraint(constraint, name)
        self.row_names.append(name)
        self._rows += 1

    def minimise(self, terms: Sequence[tuple[str, float]]) -> None:
        """Set the objective."""
        self.problem.setObjective(self._sum(terms))

    @property
    def size(self) -> tuple[int, int]:
        """Variables and constraints."""
        return len(self._variables), self._rows

    def solve(
        self,
        *,
        solver: str = "highs",
        time_limit_s: float = 60.0,
        gap: float = 1e-4,
        log_file: str | None = None,
        good_enough: float | None = None,
    ) -> Outcome:
        """Solve as it stands; `log_file` gets the solver's own log, appended.

        `good_enough` ends HiGHS at the first plan with an objective at most that.

        Raises
        ------
        SolverError
            Stopped without any solution.
        InputError
            The solver asked for is not installed.
        """
        began = time.perf_counter()
        if solver == "highs":
            outcome = self._highs(time_limit_s, gap, began, log_file, good_enough)
        else:
            outcome = self._other(solver, time_limit_s, gap, began, log_file)
        return outcome

    def _values(self) -> dict[str, float]:
        return {name: float(variable.varValue or 0.0) for name, variable in self._variables.items()}

    def _highs(
        self, time_limit_s: float, gap: float, began: float, log_file: str | None, good_enough: float | None
    ) -> Outcome:
        extra: dict[str, Any] = {}
        if log_file is not None:
            extra = {"output_flag": True, "log_to_console": False, "log_file": log_file}
        if good_enough is not None:
            extra["objective_target"] = good_enough
        with _stdout_to_stderr():
            # random_seed and threads stay at their defaults: changing threads between solves returns zeros in silence.
            self.problem.solve(self._pulp.HiGHS(msg=False, timeLimit=time_limit_s, gapRel=gap, **extra))
        model = self.problem.solverModel
        status, info = model.getModelStatus().name, model.getInfo()
        took = time.perf_counter() - began
        has_solution = info.primal_solution_status == 2  # kSolutionStatusFeasible; without it every value reads 0.0
        if status == "kInfeasible" or (status == "kUnboundedOrInfeasible" and not has_solution):
            return Outcome(proof="infeasible", objective=0.0, bound=0.0, gap=0.0, value={}, time_s=took)
        if not has_solution:
            raise SolverError(f"highs stopped without a plan ({status}) after {took:.1f} s; raise --time-limit-s")
        bound = float(info.mip_dual_bound)
        objective = float(info.objective_function_value)
        reached = abs(objective - bound) <= gap * max(abs(objective), 1e-9) + 1e-9
        return Outcome(
            proof="optimal" if status == "kOptimal" and reached else "feasible",
            objective=objective,
            bound=bound,
            gap=max(objective - bound, 0.0) / max(abs(objective), 1e-9),
            value=self._values(),
            time_s=took,
        )

    def _other(self, solver: str, time_limit_s: float, gap: float, began: float, log_file: str | None) -> Outcome:
        pulp = self._pulp
        path = shutil.which(solver)
        if solver == "cbc" and path is None:
            try:
                import cbcbox  # type: ignore[import-not-found]

                path = str(cbcbox.cbc_bin_path())
            except ImportError:
                path = None
        if path is None:
            raise InputError(f"--solver: {solver} is not installed; install it, or use highs")
        kind = pulp.COIN_CMD if solver == "cbc" else pulp.SCIP_CMD
        extra = {} if log_file is None else {"logPath": log_file}
        engine = kind(path=path, msg=False, timeLimit=time_limit_s, gapRel=gap, **extra)
        with _stdout_to_stderr():
            result = self.problem.solve(engine)
        status, has_solution, proven = _verdict(pulp, self.problem, result)
        took = time.perf_counter() - began
        if "infeasible" in status.lower():
            return Outcome(proof="infeasible", objective=0.0, bound=0.0, gap=0.0, value={}, time_s=took)
        if not has_solution:
            raise SolverError(f"{solver} stopped without a plan ({status}) after {took:.1f} s; raise --time-limit-s")
        objective = float(pulp.value(self.problem.objective))
        return Outcome(
            proof="optimal" if proven else "feasible",
            objective=objective,
            bound=objective * (1 - gap) if proven else 0.0,
            gap=gap if proven else 1.0,
            value=self._values(),
            time_s=took,
        )


def _verdict(pulp: Any, problem: Any, result: Any) -> tuple[str, bool, bool]:
    """Status in words, whether there is a plan, and whether it is proven, from whichever place this PuLP keeps them.

    PuLP 3.3 says status Optimal of an incumbent at the time limit, and only ``sol_status`` tells; PuLP 4 returns a record.
    """
    if hasattr(problem, "sol_status"):
        status = str(pulp.LpStatus[problem.status])
        found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
        return status, found, status == "Optimal" and problem.sol_status == pulp.LpSolutionOptimal
    return str(result.status.name), bool(result.has_solution), result.status.name == "Optimal"
