"""An Application Load Balancer as a traffic router: weighted target groups in one listener rule.

Weights are set in tenths of a percent (0..999 for each group, by Amazon's reference of `TargetGroupTuple`), so a share
is rounded to 0.1 %, and a smaller one is refused: see `AlbRouter.nearest`. The load balancer has no conditional write.
Whoever moves traffic therefore first claims the rule by a tag of its own, named by its epoch, which no other owner's
overwrites, and stops when it finds a higher one, before or after its own write. A write that still slips in between is
seen by the next look at the rule.
Sessions stick by cookies of Amazon's only, and a rollback would not move them: stickiness of the group is switched off,
and a header cannot be used. Nothing fails over: a candidate's failures are the users'.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llm_pipeline.adapters.aws.adapter import AwsAlbPlace
from llm_pipeline.adapters.aws.client import aws_client
from llm_pipeline.base.errors import Fenced, Unsupported
from llm_pipeline.canary.router import (
    ALL,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    rounded,
)

_LARGEST_WEIGHT = 999
_TAG = "llm-pipeline/epoch/"
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9 +\-=._:/@]")
_LONGEST_TAG = 256
_REFUSALS = frozenset(
    {
        "IncompatibleProtocols", "InvalidConfigurationRequest", "InvalidLoadBalancerAction", "OperationNotPermitted",
        "RuleNotFound", "TargetGroupAssociationLimit", "TargetGroupNotFound", "TooManyActions", "ValidationError",
    }
)  # fmt: skip
_NEEDED = (
    "elasticloadbalancing:DescribeRules, DescribeTags, DescribeTargetHealth on everything, ModifyRule, AddTags and "
    "RemoveTags on the rule"
)


@dataclass(frozen=True)
class _Claim:
    """The tag that says who moves traffic, and with which epoch.

    Attributes:
        epoch: In the tag's name.
        written: Time in nanoseconds, which tells this write from others of the same owner.
        candidate: The slot on trial; empty for none.
        owner: For people.
    """

    epoch: int = 0
    written: str = ""
    candidate: str = ""
    owner: str = "nobody"

    @classmethod
    def of(cls, tag: Mapping[str, str]) -> _Claim | None:
        """The claim in a tag; None if this package did not write it."""
        epoch, parts = tag["Key"].removeprefix(_TAG), tag["Value"].split(":", 2)
        if not tag["Key"].startswith(_TAG) or not epoch.isdecimal() or len(parts) != 3:  # noqa: PLR2004
            return None
        return cls(int(epoch), *parts)

    @property
    def tag(self) -> dict[str, str]:
        value = f"{self.written}:{self.candidate}:{self.owner}"
        return {"Key": f"{_TAG}{self.epoch}", "Value": _NOT_IN_A_TAG.sub("_", value)[:_LONGEST_TAG]}


@dataclass(frozen=True)
class _Rule:
    """What the rule does, and all claims on it."""

    actions: tuple[Mapping[str, Any], ...]
    weights: Mapping[str, int]
    claims: tuple[_Claim, ...]

    @property
    def claim(self) -> _Claim:
        """The one that counts."""
        return max(self.claims, key=lambda claim: claim.epoch, default=_Claim())

    @property
    def revision(self) -> str:
        """The claim, and the weights themselves: a change by another hand leaves the tags as they were."""
        weights = ",".join(f"{arn.rsplit('/', 2)[1]}={weight}" for arn, weight in sorted(self.weights.items()))
        return f"{self.claim.epoch}:{self.claim.written}:{weights}"


class AlbRouter:
    """The `TrafficRouter` port on one rule of an Application Load Balancer."""

    def __init__(self, place: AwsAlbPlace, *, reread_seconds: float = 0.5) -> None:
        """Creates the client without sending a request.

        Args:
            place: The rule and the target groups.
            reread_seconds: Between the two reads that must agree: answers may come from a replica that is behind.

        Raises:
            Unsupported: boto3 is not installed in this interpreter.
            ConfigError: There is no region.
        """
        self._place = place
        self._groups: dict[SlotName, str] = {"blue": place.target_groups.blue, "green": place.target_groups.green}
        self._reread_seconds = reread_seconds
        self._client = aws_client("elbv2", place.region, place.endpoint_url, where=place.rule)

    def nearest(self, want: RouteState) -> RouteState:
        """Rounds weights to the nearest 0.1 %, and leaves out mirrored requests, which this router cannot send."""
        return rounded(want, self._place.share_unit, where=self._place.rule)

    def read(self) -> tuple[RouteState, str]:
        rule = self._rule()
        return self._state(rule), rule.revision

    def write(self, want: RouteState, expect: str | None) -> str:
        """Writes the state, with the weights of `nearest`.

        Raises:
            RouterRejected: The load balancer refuses, or cannot do it.
        """
        try:
            want = self.nearest(want)
        except Unsupported as error:
            raise RouterRejected(error.message, where=error.where) from error
        rule = self._rule()
        _refuse_fenced(rule, want.epoch)
        if self._says(rule, want):
            return rule.revision
        if expect is not None and expect != rule.revision:
            raise RouterConflict(f"the rule is at {rule.revision}, not at {expect}", where=self._place.rule)
        claim = self._claim(want)
        with self._errors("ModifyRule"):
            self._client.modify_rule(RuleArn=self._place.rule, Actions=self._actions(rule, want))
        _refuse_fenced(self._rule(), want.epoch)
        self._forget([old for old in rule.claims if old.epoch < want.epoch])
        return _Rule((), self._weights(want), (claim,)).revision

    def converged(self, revision: str) -> bool | None:
        """Whether two reads in a row show the revision.

        That is the word of the API. When the load balancer's own nodes act on it, only the measured split shows.
        """
        try:
            if self._rule().revision != revision:
                return False
            time.sleep(self._reread_seconds)
            return self._rule().revision == revision
        except RouterUnavailable:
            return None

    def usable(self, slot: SlotName) -> bool | None:
        """Whether at least one target of the group is healthy.

        A target of a group that no rule sends traffic to is `unused` and never checked: nothing is known of it.
        """
        try:
            with self._errors("DescribeTargetHealth"):
                answer = self._client.describe_target_health(TargetGroupArn=self._groups[slot])
        except RouterUnavailable:
            return None
        states = {one["TargetHealth"]["State"] for one in answer["TargetHealthDescriptions"]}
        if "healthy" in states:
            return True
        return None if "unused" in states else False

    def active_requests(self, slot: SlotName) -> int | None:  # noqa: ARG002 - the load balancer does not tell
        """None: it cannot be known."""
        return None

    def revive(self) -> str | None:
        """Nothing to do: the load balancer is Amazon's."""
        return None

    def _rule(self) -> _Rule:
        with self._errors("DescribeRules"):
            rules = self._client.describe_rules(RuleArns=[self._place.rule])["Rules"]
        with self._errors("DescribeTags"):
            described = self._client.describe_tags(ResourceArns=[self._place.rule])["TagDescriptions"]
        claims = tuple(claim for one in described for tag in one["Tags"] if (claim := _Claim.of(tag)) is not None)
        actions = tuple(rules[0]["Actions"])
        return _Rule(actions=actions, weights=_weights_of(actions), claims=claims)

    def _state(self, rule: _Rule) -> RouteState:
        slots = {arn: slot for slot, arn in self._groups.items()}
        total = sum(rule.weights.values())
        foreign = [arn for arn, weight in rule.weights.items() if weight and arn not in slots]
        if foreign or not total:
            what = (
                f"forwards to {', '.join(foreign)}, which is not a slot" if foreign else "forwards to no target group"
            )
            raise RouterUnavailable(f"the rule {what}", where=self._place.rule, hint="somebody edited it")
        mine = rule.weights.get(self._groups["green"], 0)
        green = round(mine * ALL / total)
        claim = rule.claim
        values = {"weights": {"blue": ALL - green, "green": green}, "candidate": claim.candidate or None}
        try:
            return RouteState.model_validate({**values, "owner": claim.owner, "epoch": claim.epoch})
        except ValidationError as error:
            raise RouterUnavailable(
                f"the rule's tags were not written by this package: {error}", where=self._place.rule
            ) from error

    def _says(self, rule: _Rule, want: RouteState) -> bool:
        try:
            return self._state(rule) == want
        except RouterUnavailable:
            return False

    def _weights(self, want: RouteState) -> dict[str, int]:
        units = {slot: want.weights.get(slot, 0) // self._place.share_unit for slot in self._groups}
        return {self._groups[slot]: min(unit, _LARGEST_WEIGHT) for slot, unit in units.items()}  # 999 to 0 is all

    def _actions(self, rule: _Rule, want: RouteState) -> list[Mapping[str, Any]]:
        """The rule's own actions (it may authenticate users first), with our weights in the one that forwards."""
        groups = [{"TargetGroupArn": arn, "Weight": weight} for arn, weight in self._weights(want).items()]
        config = {"TargetGroups": groups, "TargetGroupStickinessConfig": {"Enabled": False}}
        last = max((action.get("Order", 1) for action in rule.actions), default=1)
        forward = {"Type": "forward", "Order": last, "ForwardConfig": config}
        return [*(action for action in rule.actions if action["Type"].startswith("authenticate-")), forward]

    def _claim(self, want: RouteState) -> _Claim:
        """Say who writes, before it is written."""
        claim = _Claim(want.epoch, str(time.time_ns()), want.candidate or "", want.owner)
        with self._errors("AddTags"):
            self._client.add_tags(ResourceArns=[self._place.rule], Tags=[claim.tag])
        _refuse_fenced(self._rule(), want.epoch)
        return claim

    def _forget(self, claims: list[_Claim]) -> None:
        """Remove the tags of those before; a rule has room for fifty."""
        if claims:
            keys = [claim.tag["Key"] for claim in claims]
            with self._errors("RemoveTags"):
                self._client.remove_tags(ResourceArns=[self._place.rule], TagKeys=keys)

    @contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        """Turns errors of boto3 into the port's; all that may pass are Transient, so that a rollback tries again."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = f"{operation}: {code}: {error.response.get('Error', {}).get('Message', '')}"
            if code in _REFUSALS:
                raise RouterRejected(message, where=self._place.rule) from error
            if code == "ResourceInUse":
                raise RouterConflict(message, where=self._place.rule) from error
            hint = f"the credentials need {_NEEDED}"
            raise RouterUnavailable(message, where=self._place.rule, hint=hint) from error
        except BotoCoreError as error:
            raise RouterUnavailable(f"{operation}: {error}", where=self._place.rule) from error


def _weights_of(actions: tuple[Mapping[str, Any], ...]) -> dict[str, int]:
    for action in actions:
        if action["Type"] == "forward" and "ForwardConfig" in action:
            groups = action["ForwardConfig"].get("TargetGroups", [])
            return {group["TargetGroupArn"]: int(group.get("Weight", 1)) for group in groups}
        if action["Type"] == "forward":
            return {action["TargetGroupArn"]: 1}
    return {}


def _refuse_fenced(rule: _Rule, epoch: int) -> None:
    if rule.claim.epoch > epoch:
        raise Fenced(f"epoch {epoch} was superseded: {rule.claim.owner} writes with {rule.claim.epoch}")
