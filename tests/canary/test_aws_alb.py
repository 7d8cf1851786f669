"""The load balancer's adapter against moto's server.

What that does not prove: that Amazon accepts exactly these requests (moto takes weights of 1000 and -1), how late its
reads are, when its nodes act on a rule, its throttling and permissions, and any real traffic.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from s3_faults import Exchange, Faults, Response, faulty

from llm_pipeline.adapters.aws.adapter import ROUTER, AwsAlbPlace, TargetGroups
from llm_pipeline.adapters.aws.alb import AlbRouter
from llm_pipeline.base.errors import Fenced, Unsupported
from llm_pipeline.canary.open_router import open_router, router_as_it_is
from llm_pipeline.canary.router import (
    ALL,
    Mirror,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    all_to,
)

REGION = "eu-central-1"


@pytest.fixture(scope="module")
def endpoint(s3_server: Any) -> Iterator[str]:
    """Of all of Amazon's services; a credential is asked for by the clients only."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test-access-key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-key")
        yield s3_server.endpoint


@functools.cache
def client(service: str, endpoint: str) -> Any:
    import boto3

    return boto3.client(service, region_name=REGION, endpoint_url=endpoint)


@pytest.fixture(scope="module")
def place(endpoint: str) -> AwsAlbPlace:
    ec2, elb = client("ec2", endpoint), client("elbv2", endpoint)
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    zones = [(f"10.0.{number}.0/24", f"{REGION}{zone}") for number, zone in enumerate("ab")]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for block, zone in zones
    ]
    mine = uuid.uuid4().hex[:8]  # the double's account lasts as long as the process, and other files use it, too
    balancer = elb.create_load_balancer(Name=f"llm-{mine}", Subnets=subnets)["LoadBalancers"][0]["LoadBalancerArn"]
    groups = {
        slot: elb.create_target_group(Name=f"{slot}-{mine}", Protocol="HTTP", Port=8000, VpcId=vpc, TargetType="ip")[
            "TargetGroups"
        ][0]["TargetGroupArn"]
        for slot in ("blue", "green")
    }
    nothing = [{"Type": "fixed-response", "FixedResponseConfig": {"StatusCode": "404"}}]
    listener = elb.create_listener(LoadBalancerArn=balancer, Protocol="HTTP", Port=80, DefaultActions=nothing)
    forward = [{"Type": "forward", "TargetGroupArn": groups["blue"]}]
    rule = elb.create_rule(
        ListenerArn=listener["Listeners"][0]["ListenerArn"],
        Priority=10,
        Conditions=[{"Field": "path-pattern", "Values": ["/v2/*"]}],
        Actions=forward,
    )["Rules"][0]["RuleArn"]
    return AwsAlbPlace(
        kind="aws_alb", rule=rule, target_groups=TargetGroups(**groups), region=REGION, endpoint_url=endpoint
    )


@pytest.fixture(scope="module")
def opened(place: AwsAlbPlace) -> AlbRouter:
    return AlbRouter(place, reread_seconds=0.0)


@pytest.fixture
def router(opened: AlbRouter, place: AwsAlbPlace) -> AlbRouter:
    """A router that nobody wrote yet, with all traffic on blue."""
    elb = client("elbv2", str(place.endpoint_url))
    forward = [{"Type": "forward", "TargetGroupArn": place.target_groups.blue}]
    elb.modify_rule(RuleArn=place.rule, Actions=forward)
    tags = elb.describe_tags(ResourceArns=[place.rule])["TagDescriptions"][0]["Tags"]
    if tags:
        elb.remove_tags(ResourceArns=[place.rule], TagKeys=[tag["Key"] for tag in tags])
    return opened


def split(green: int, epoch: int = 1, **changes: Any) -> RouteState:
    values = {"weights": {"blue": ALL - green, "green": green}, "candidate": "green", "owner": "t", "epoch": epoch}
    return RouteState(**{**values, **changes})


def weights(place: AwsAlbPlace) -> dict[str, int]:
    """What the load balancer itself says."""
    rule = client("elbv2", str(place.endpoint_url)).describe_rules(RuleArns=[place.rule])["Rules"][0]
    groups = rule["Actions"][0]["ForwardConfig"]["TargetGroups"]
    return {group["TargetGroupArn"].split("/")[1].partition("-")[0]: int(group["Weight"]) for group in groups}


def test_a_rule_that_nobody_of_ours_wrote_can_be_read(router):
    state, _ = router.read()
    assert state.same_traffic(all_to("blue", owner="x", epoch=0))
    assert state.epoch == 0


def test_doctor_reads_the_rule(router, place):
    assert ROUTER.probe(place) == "aws_alb answers: blue 100 %, green 0 %"
    with pytest.raises(RouterUnavailable):
        ROUTER.probe(place.model_copy(update={"endpoint_url": "http://127.0.0.1:9"}))


@pytest.mark.parametrize("green", [10, 100, 500, 3330, 5000, 9990])
def test_what_is_written_is_read_and_has_converged(router, green):
    revision = router.write(split(green), None)
    assert router.read() == (split(green), revision)
    assert router.converged(revision) is True


def test_weights_are_tenths_of_a_percent_and_never_above_amazons_limit(router, place):
    for state, expected in [
        (split(500), {"blue": 950, "green": 50}),
        (all_to("green", owner="t", epoch=2), {"blue": 0, "green": 999}),
        (all_to("blue", owner="t", epoch=3), {"blue": 999, "green": 0}),
    ]:
        router.write(state, None)
        assert weights(place) == expected
    assert router.read()[0].weights == {"blue": ALL, "green": 0}


@pytest.mark.parametrize(("share", "rounded"), [(3333, 3330), (126, 130), (14, 10), (9994, 9990)])
def test_the_share_to_test_the_split_against_is_the_rounded_one(router, share, rounded):
    assert router.nearest(split(share)).weights["green"] == rounded
    router.write(split(share), None)
    assert router.read()[0].weights["green"] == rounded


@pytest.mark.parametrize(
    ("want", "problem"),
    [
        (split(4), "splits by 0.1 % at least"),
        (split(9996), "splits by 0.1 % at least"),
        (split(500, sticky_header="x-session"), "cannot keep sessions"),
    ],
)
def test_what_a_load_balancer_cannot_do_is_refused_and_nothing_is_written(router, want, problem):
    with pytest.raises(Unsupported, match=problem):
        router.nearest(want)
    before = router.read()
    with pytest.raises(RouterRejected, match=problem):
        router.write(want, None)
    assert router.read() == before


def test_it_copies_no_requests_and_says_so_by_its_nearest(router):
    want = all_to("blue", owner="t", epoch=1).model_copy(update={"mirror": Mirror(slot="green", share=100)})
    assert router.nearest(want).mirror is None
    router.write(want, None)
    assert router.read()[0] == router.nearest(want)


def test_the_same_write_twice_is_one_revision(router):
    assert router.write(split(500), None) == router.write(split(500), None)


def test_an_old_epoch_is_fenced(router, place):
    router.write(split(500, epoch=7), None)
    before = router.read()
    with pytest.raises(Fenced, match="epoch 6 was superseded"):
        router.write(split(5000, epoch=6), None)
    assert router.read() == before
    assert weights(place) == {"blue": 950, "green": 50}


def test_a_write_over_a_changed_revision_is_a_conflict(router):
    _, old = router.read()
    router.write(split(500), None)
    with pytest.raises(RouterConflict):
        router.write(split(2500), old)


def forwards(place: AwsAlbPlace, **by_arn: int) -> list[dict[str, Any]]:
    groups = [{"TargetGroupArn": getattr(place.target_groups, slot), "Weight": w} for slot, w in by_arn.items()]
    return [{"Type": "forward", "ForwardConfig": {"TargetGroups": groups}}]


def test_a_change_by_another_hand_is_seen_and_makes_a_conflict(router, place):
    revision = router.write(split(500), None)
    client("elbv2", place.endpoint_url).modify_rule(RuleArn=place.rule, Actions=forwards(place, blue=1, green=1))
    state, now = router.read()
    assert (state.weights["green"], now == revision) == (5000, False)
    assert router.converged(revision) is False
    with pytest.raises(RouterConflict):
        router.write(split(1000), revision)
    router.write(all_to("blue", owner="rollback", epoch=2), None)  # which asks for nothing
    assert weights(place) == {"blue": 999, "green": 0}


def is_a(action: str):
    return lambda request: parse_qs(request.body.decode()).get("Action") == [action]


@pytest.fixture(scope="module")
def proxy(place: AwsAlbPlace) -> Iterator[tuple[Faults, AlbRouter]]:
    with faulty(str(place.endpoint_url)) as found:
        yield found, AlbRouter(place.model_copy(update={"endpoint_url": found.endpoint}), reread_seconds=0.0)


@pytest.fixture
def faults(proxy: tuple[Faults, AlbRouter]) -> Faults:
    proxy[0].heal()
    return proxy[0]


@pytest.fixture
def shaky(router: AlbRouter, proxy: tuple[Faults, AlbRouter]) -> AlbRouter:
    """The router behind a proxy that goes wrong."""
    return proxy[1]


def test_it_has_converged_only_when_two_reads_in_a_row_show_it(shaky, faults):
    before: list[Response] = []

    def remember(exchange: Exchange) -> Response:
        before.append(exchange.forward())
        return before[0]

    faults.inject(remember, when=is_a("DescribeRules"))
    shaky.read()
    revision = shaky.write(split(500), None)
    faults.inject(lambda _: before[0], when=is_a("DescribeRules"), skip=1)
    assert shaky.converged(revision) is False
    assert shaky.converged(revision) is True
    assert faults.committed


@pytest.mark.parametrize("first", ["the newer owner", "the older owner"])
def test_whoever_is_overtaken_before_its_weights_leaves_the_rule_alone(shaky, router, place, faults, first):
    def overtaken(exchange: Exchange) -> Response:
        answer = exchange.forward() if first == "the older owner" else None
        router.write(all_to("blue", owner="newer", epoch=9), None)
        return answer or exchange.forward()

    faults.inject(overtaken, when=is_a("AddTags"))
    with pytest.raises(Fenced, match="epoch 8 was superseded: newer writes with 9"):
        shaky.write(split(5000, epoch=8), None)
    assert weights(place) == {"blue": 999, "green": 0}
    assert not faults.seen(is_a("ModifyRule"))
    assert router.read()[0].epoch == 9


def test_whoever_is_overtaken_by_its_weights_says_so(shaky, router, faults):
    def overtaken(exchange: Exchange) -> Response:
        answer = exchange.forward()
        router.write(all_to("blue", owner="newer", epoch=9), None)
        return answer

    faults.inject(overtaken, when=is_a("ModifyRule"))
    with pytest.raises(Fenced, match="newer writes with 9"):
        shaky.write(split(5000, epoch=8), None)


def test_a_group_keeps_no_users(router, place):
    router.write(split(500), None)
    rule = client("elbv2", place.endpoint_url).describe_rules(RuleArns=[place.rule])["Rules"][0]
    sticky = rule["Actions"][0]["ForwardConfig"]["TargetGroupStickinessConfig"]
    assert sticky["Enabled"] in (False, "false"), "a rollback would not move them"


def test_the_tags_of_earlier_owners_are_removed(router, place):
    for epoch in range(1, 5):
        router.write(split(100 * epoch, epoch=epoch), None)
    tags = client("elbv2", place.endpoint_url).describe_tags(ResourceArns=[place.rule])["TagDescriptions"][0]["Tags"]
    assert [tag["Key"] for tag in tags] == ["llm-pipeline/epoch/4"]


def refused(status: int, code: str):
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>".encode()
    return lambda _: Response(status, {"content-type": "text/xml"}, body)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "Throttling", RouterUnavailable),
        (503, "ServiceUnavailable", RouterUnavailable),
        (403, "AccessDenied", RouterUnavailable),
        (400, "InvalidConfigurationRequest", RouterRejected),
        (400, "ResourceInUse", RouterConflict),
    ],
)
def test_amazons_errors_are_the_ports(shaky, faults, status, code, error):
    faults.inject(refused(status, code), when=is_a("ModifyRule"), times=3)
    with pytest.raises(error, match=code):
        shaky.write(split(500), None)


def test_a_rule_that_is_gone_is_no_reason_to_try_for_ever(place):
    gone = place.model_copy(update={"rule": place.rule[:-4] + "0000"})
    with pytest.raises(RouterRejected, match="RuleNotFound"):
        AlbRouter(gone).read()


def test_without_an_answer_nothing_is_known(place):
    away = AlbRouter(place.model_copy(update={"endpoint_url": "http://127.0.0.1:9"}))
    with pytest.raises(RouterUnavailable):
        away.read()
    assert (away.converged("1:1:x"), away.usable("blue"), away.active_requests("blue")) == (None, None, None)


def test_a_slot_is_usable_when_a_target_of_it_is_healthy(router, place):
    assert router.usable("green") is False
    elb = client("elbv2", place.endpoint_url)
    elb.register_targets(TargetGroupArn=place.target_groups.green, Targets=[{"Id": "10.0.0.9", "Port": 8000}])
    assert router.usable("green") is True


def test_whoever_authenticates_users_first_still_does(router, place):
    oidc = {
        "Issuer": "https://id.example.com", "AuthorizationEndpoint": "https://id.example.com/a",
        "TokenEndpoint": "https://id.example.com/t", "UserInfoEndpoint": "https://id.example.com/u",
        "ClientId": "c", "ClientSecret": "s",
    }  # fmt: skip
    first = {"Type": "authenticate-oidc", "Order": 1, "AuthenticateOidcConfig": oidc}
    actions = [first, {**forwards(place, blue=1)[0], "Order": 2}]
    elb = client("elbv2", place.endpoint_url)
    elb.modify_rule(RuleArn=place.rule, Actions=actions)
    router.write(split(500), None)
    found = elb.describe_rules(RuleArns=[place.rule])["Rules"][0]["Actions"]
    assert [action["Type"] for action in found] == ["authenticate-oidc", "forward"]
    assert router.read()[0] == split(500)


def test_it_is_the_router_of_its_kind_of_place(place, tmp_path: Path):
    initial = all_to("blue", owner="t", epoch=0)
    assert isinstance(open_router(place, {}, tmp_path, initial=initial), AlbRouter)
    assert isinstance(router_as_it_is(place, {}, tmp_path), AlbRouter)
