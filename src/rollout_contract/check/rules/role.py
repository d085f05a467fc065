"""A field with a standard name has the role that every loss expects of that name."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.check.probe import Finding
from rollout_contract.check.subjects import SchemaSubject
from rollout_contract.roles import Role

_FIXED = ("old_log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs", "advantages", "returns")
_STANDARD = dict.fromkeys(_FIXED, Role.FIXED) | {"log_probs": Role.TRAINABLE}


def find_in_schema(subject: SchemaSubject) -> Iterator[Finding]:
    for name, spec in subject.schema.__plan__.items():
        place = subject.source.declaring(name)
        if place is None or not spec.is_tensor:
            continue
        wanted = _STANDARD.get(name, spec.role)
        if spec.role is not wanted:
            hint = "a live one makes every ratio 1, or moves what shall be a constant" if wanted is Role.FIXED else ""
            yield Finding(place, f"{name}: {wanted.value}", f"{name}: {spec.role.value}", hint)
