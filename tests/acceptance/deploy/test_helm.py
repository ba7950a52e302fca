"""The Helm chart, rendered by helm: valid, locked down, and clear about wrong values."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from otel_fr_collector.settings import OPTIONS

from tests.support.commands import BIN, otel_fr
from tests.support.external_programs import OTELCOL, collector_help, load, needs_otelcol
from tests.support.paths import DEPLOY

HELM = os.environ.get("HELM_BIN") or shutil.which("helm", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
CHART = DEPLOY / "helm" / "otel-fr"
EXAMPLES = DEPLOY / "helm" / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
OPERATOR = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus Operator, which Kubernetes' own schemas lack."""

Objects = dict[tuple[str, str], Any]


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    if not HELM:
        pytest.skip("no Helm here (neither HELM_BIN nor helm on PATH)")
    return subprocess.run([HELM, *args], capture_output=True, text=True)


def template(*args: str) -> str:
    done = helm("template", "otel-fr", str(CHART), "--namespace", "otel-fr", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> Objects:
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one is not None}


@functools.cache
def example(name: str) -> Objects:
    return objects(template("--values", str(EXAMPLES / f"{name}.yaml")))


def pods_of(found: Objects) -> list[Any]:
    return [one["spec"]["template"] for (kind, _), one in found.items() if kind in {"StatefulSet", "Deployment"}]


def collector(found: Objects) -> dict[str, Any]:
    container: dict[str, Any] = found["StatefulSet", "otel-fr-collector"]["spec"]["template"]["spec"]["containers"][0]
    return container


@pytest.mark.parametrize("name", NAMES)
def test_an_example_passes_lint(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", str(EXAMPLES / f"{name}.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_objects_fit_the_published_schemas_and_are_in_the_namespace_of_the_release(name: str) -> None:
    for (kind, _), one in example(name).items():
        assert one["metadata"]["namespace"] == "otel-fr"
        if kind in OPERATOR:
            assert one["apiVersion"] == "monitoring.coreos.com/v1"
        else:
            kubernetes_validate.validate(one, desired_version="1.31", strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_locked_down_and_mount_what_they_have(name: str) -> None:
    found = example(name)
    pods = pods_of(found)
    assert pods
    for pod in pods:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec["automountServiceAccountToken"]
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert re.search(r":v?\d+\.\d+\.\d+$", container["image"])
        assert container["resources"]["limits"]["memory"]
        mounts = {one["name"] for one in container["volumeMounts"]}
        claims = {
            claim["metadata"]["name"]
            for (kind, _), one in found.items()
            if kind == "StatefulSet" and one["spec"]["template"] is pod
            for claim in one["spec"]["volumeClaimTemplates"]
        }
        assert mounts == {one["name"] for one in spec["volumes"]} | claims
        labels = pod["metadata"]["labels"].items()
        policies = [one["spec"] for (kind, _), one in found.items() if kind == "NetworkPolicy"]
        assert any(one["podSelector"]["matchLabels"].items() <= labels for one in policies), "any pod may connect"


@pytest.mark.parametrize("name", NAMES)
def test_services_and_network_policies_name_ports_that_their_pods_have(name: str) -> None:
    """The page is open only to monitoring."""
    found = example(name)

    def ports(labels: dict[str, str]) -> set[str]:
        (pod,) = [pod for pod in pods_of(found) if labels.items() <= pod["metadata"]["labels"].items()]
        return {port["name"] for port in pod["spec"]["containers"][0]["ports"]}

    for (kind, _), one in found.items():
        spec = one.get("spec", {})
        if kind == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= ports(spec["selector"])
        elif kind == "NetworkPolicy":
            for rule in spec["ingress"]:
                opened = {port["port"] for port in rule["ports"]}
                assert opened <= ports(spec["podSelector"]["matchLabels"])
                if "http" in opened:
                    (peer,) = rule["from"]
                    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
            assert set(spec["policyTypes"]) == {"Ingress", "Egress"}


def test_ingress_and_disruption_budgets_are_off_until_they_are_asked_for() -> None:
    kinds = {"Ingress", "PodDisruptionBudget"}
    assert kinds.isdisjoint(kind for kind, _ in example("many"))
    values = (
        "ingress.enabled=true,ingress.host=fr.example.org,ingress.tlsSecret=fr-tls,podDisruptionBudget.enabled=true"
    )
    found = objects(template("--values", str(EXAMPLES / "many.yaml"), "--set", values))
    for (kind, _), one in found.items():
        if kind in kinds:
            kubernetes_validate.validate(one, desired_version="1.31", strict=True)
    (rule,) = found["Ingress", "otel-fr-collector"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend["port"]["name"] in {one["name"] for one in found["Service", backend["name"]]["spec"]["ports"]}
    assert found["Ingress", "otel-fr-collector"]["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "fr-tls"}]
    opened = found["NetworkPolicy", "otel-fr-collector"]["spec"]["ingress"][-1]
    assert [one["port"] for one in opened["ports"]] == ["http"]
    assert len(opened["from"]) == 2, "monitoring, and the controller"
    budgets = {name: one["spec"] for (kind, name), one in found.items() if kind == "PodDisruptionBudget"}
    assert set(budgets) == {"otel-fr-collector", "otel-fr-loadbalancer"}
    for budget in budgets.values():
        chosen = budget["selector"]["matchLabels"].items()
        assert sum(chosen <= pod["metadata"]["labels"].items() for pod in pods_of(found)) == 1


def test_certificate_and_tokens_are_files_of_secrets_and_every_client_speaks_tls() -> None:
    found = example("secured")
    container = collector(found)
    given = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])
    places = {one["mountPath"]: one for one in container["volumeMounts"]}
    volumes = found["StatefulSet", "otel-fr-collector"]["spec"]["template"]["spec"]["volumes"]
    secrets = {one["name"]: one["secret"]["secretName"] for one in volumes if "secret" in one}
    for option, secret in {
        "tls-cert": "otel-fr-tls",
        "tls-key": "otel-fr-tls",
        "tokens": "otel-fr-tokens",
        "webhook-secret-file": "otel-fr-webhook",
    }.items():
        place = places[str(Path(given[option]).parent)]
        assert place["readOnly"]
        assert secrets[place["name"]] == secret
    assert all(one["httpGet"]["scheme"] == "HTTPS" for name, one in container.items() if name.endswith("Probe"))
    (scraped,) = found["ServiceMonitor", "otel-fr-collector"]["spec"]["endpoints"]
    assert scraped["scheme"] == "https"
    assert scraped["authorization"]["credentials"] == {"name": "otel-fr-scrape-token", "key": "token"}


@pytest.mark.parametrize("name", NAMES)
def test_the_collector_takes_the_options_that_the_chart_gives_it(name: str) -> None:
    options = {option.split("=")[0] for option in collector(example(name))["args"]}
    assert options
    assert options <= set(re.findall(r"--[a-z][a-z-]+", collector_help()))


def test_the_collector_starts_with_the_arguments_of_the_example(tmp_path: Path) -> None:
    args = [re.sub(r"^--data=.*", f"--data={tmp_path}", one) for one in collector(example("one"))["args"]]
    done = otel_fr("collector", "--check", *args)
    assert done.returncode == 0, done.stderr
    assert 'alertmanager = ["http://alertmanager-operated.monitoring.svc:9093"]' in done.stdout
    assert 'link = ["trace=https://jaeger.example.org/trace/{trace_id}"]' in done.stdout


def test_the_load_balancer_speaks_tls_and_passes_tokens_on() -> None:
    values = "replicas=2,store.postgresql.existingSecret=db,tls.existingSecret=tls,tls.clientCA=clients.crt"
    found = objects(template("--set", f"{values},tokens.existingSecret=tokens"))
    config = yaml.safe_load(found["ConfigMap", "otel-fr-loadbalancer"]["data"]["config.yaml"])
    for protocol in config["receivers"]["otlp"]["protocols"].values():
        assert protocol["include_metadata"]
        assert protocol["tls"]["client_ca_file"] == "/etc/otel-fr/tls/clients.crt"
    sent = config["exporters"]["loadbalancing"]["protocol"]["otlp"]
    assert not sent["tls"]["insecure"]
    assert sent["auth"]["authenticator"] in config["service"]["extensions"]
    assert (
        sent["timeout"]
        == load("otelcol/loadbalancing.yaml")["exporters"]["loadbalancing"]["protocol"]["otlp"]["timeout"]
    )
    spec = found["Deployment", "otel-fr-loadbalancer"]["spec"]["template"]["spec"]
    assert {one["name"]: one.get("secret", {}).get("secretName") for one in spec["volumes"]}["tls"] == "tls"
    (container,) = spec["containers"]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "TLS_CA": "/etc/otel-fr/tls/ca.crt",
        "TLS_NAME": "otel-fr-collector.otel-fr.svc",
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("replica=2", "Additional property replica is not allowed"),
        ("ingress.enabled=true", "ingress.host"),
        ("podDisruptionBudget.maxUnavailable=0", "podDisruptionBudget.maxUnavailable"),
        ("replicas=0", "replicas: Must be greater than or equal to 1"),
        ("replicas=2", "set store.postgresql.existingSecret"),
        ("options.grpc=0.0.0.0:1", "options.grpc is set by the chart"),
        ("tls.clientCA=ca.crt", "tls.clientCA is set without tls.existingSecret"),
        ("persistence.size=ten", "persistence.size"),
        ("options.alertmanger=http://a", 'Property name of "alertmanger" does not match'),
        ("fullnameOverride=Foo_Bar", "fullnameOverride: Does not match pattern"),
        ("image.pullPolicy=Sometimes", "image.pullPolicy"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(value: str, says: str) -> None:
    done = helm("template", "otel-fr", str(CHART), "--set", value)
    assert done.returncode != 0
    assert says in done.stderr


def test_options_of_every_type_reach_the_collector_unchanged(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    options = {
        "retention-days": 12500000,
        "straggler-seconds": 0.9,
        "quiet": False,
        "alertmanager": ["http://a", "http://b"],
    }
    values.write_text(yaml.safe_dump({"options": options}))
    args = collector(objects(template("--values", str(values))))["args"]
    for expected in ("--retention-days=12500000", "--straggler-seconds=0.9", "--no-quiet", "--alertmanager=http://b"):
        assert expected in args


def test_the_values_of_the_chart_and_of_the_examples_fit_the_schema() -> None:
    command = [str(BIN / "check-jsonschema"), "--schemafile", str(CHART / "values.schema.json")]
    files = [str(CHART / "values.yaml"), *map(str, EXAMPLES.glob("*.yaml"))]
    done = subprocess.run([*command, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_has_every_option_of_the_collector() -> None:
    names = json.loads((CHART / "values.schema.json").read_text())["properties"]["options"]["propertyNames"]["enum"]
    assert names == [one.name for one in OPTIONS]


def test_the_kubelet_can_ask_a_collector_that_wants_client_certificates_whether_it_is_alive() -> None:
    args = ("--set", "tls.existingSecret=tls")
    for given, kind in ((args, "httpGet"), ((*args, "--set", "tls.clientCA=ca.crt"), "tcpSocket")):
        probes = {name: one for name, one in collector(objects(template(*given))).items() if name.endswith("Probe")}
        assert len(probes) == 3
        assert all(kind in one for one in probes.values()), "it has no certificate, which /healthz asks for"


@pytest.mark.parametrize("seconds", ["10", "0.5", "120"])
def test_a_pod_is_given_more_time_to_stop_than_its_collector_takes(seconds: str) -> None:
    found = objects(template("--set", f"options.stop-seconds={seconds}"))
    grace = found["StatefulSet", "otel-fr-collector"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= float(seconds) + 10


@needs_otelcol
def test_the_load_balancer_is_configured_for_the_real_collector(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    found = example("many")
    config.write_text(found["ConfigMap", "otel-fr-loadbalancer"]["data"]["config.yaml"])
    done = subprocess.run([str(OTELCOL), "validate", "--config", str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    resolver = yaml.safe_load(config.read_text())["exporters"]["loadbalancing"]["resolver"]["dns"]
    service, namespace, *_ = resolver["hostname"].split(".")
    assert found["Service", service]["metadata"]["namespace"] == namespace
    assert found["Service", service]["spec"]["clusterIP"] == "None"


def test_the_rules_are_those_of_prometheus_with_the_runbooks_of_this_site() -> None:
    rule = example("one")["PrometheusRule", "otel-fr"]["spec"]
    text = yaml.safe_dump(load("prometheus/otel_fr.rules.yml"))
    expected = yaml.safe_load(text.replace("http://localhost:8080/runbooks", "https://otel-fr.example.org/runbooks"))
    assert rule == expected


def test_every_dashboard_is_found_by_grafanas_sidecar() -> None:
    found = objects(template("--set", "grafanaDashboards.enabled=true,grafanaDashboards.namespace=monitoring"))
    maps = [one for (kind, _), one in found.items() if kind == "ConfigMap"]
    files = {path.name: path.read_text() for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    assert {name: text for one in maps for name, text in one["data"].items()} == files
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["namespace"] == "monitoring"
        kubernetes_validate.validate(one, desired_version="1.31", strict=True)
