"""What the keys of a recipe are made of; tasks and engines describe their own keys with it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_SAMPLES = 10**6  # of one question; a slip of the hand, and more than any machine holds
Positive = Annotated[int, Field(ge=1)]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
NonNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
Template = Literal["qwen_boxed", "r1", "plain", "chat"]
# A completion cut off at the token limit: scored 0, or judged if it holds a box already.
Cut = Literal["zero", "judge"]


class Node(BaseModel):
    """A branch of the tree: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_switches(cls, given: Any) -> Any:
        """YAML reads yes, no, on and off as true and false, and those would be 1 and 0."""
        for name, field in cls.model_fields.items() if isinstance(given, dict) else ():
            kinds = (field.annotation, *get_args(field.annotation))
            if given.get(name) is False and "off" in kinds:  # a value of that name
                given = {**given, name: "off"}
            if isinstance(given.get(name), bool) and bool not in kinds:
                said = "true, false, yes, no, on or off"
                raise ValueError(f"{name}: it is no switch: give a value, not {said}")
        return given
