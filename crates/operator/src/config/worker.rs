//! Reads `worker` and the worker's own file: the worker pod and its checks.

use std::net::IpAddr;

use nodekeeper_core::api::{Backoff, ImagePullPolicy, Quantity, Resources, Toleration, TolerationOperator};
use nodekeeper_core::checks::Dns;

use super::section::{Field, Section, quoted};
use super::{LegacyConfig, OLD_IMAGE, containers, gate, validators};

/// The seconds that a worker needs besides its checks, as the CRD requires.
pub const SPARE: i32 = 5;

pub fn read<'a>(root: &mut Section<'a>, file: Option<Field<'a>>, legacy: &mut LegacyConfig) {
    let mut section = root.section("worker");
    image(&mut section, legacy);
    place(&mut section, legacy, file.is_some());
    let worker = &mut legacy.gate.worker;
    worker.resources = section.take("resources").map(|field| resources(&field));
    if let Some(field) = section.take("tolerations") {
        worker.tolerations = field.items(32).iter().map(toleration).collect();
    }
    containers::read(&mut section, worker);
    let deadline = deadline(&mut section);
    // kube-node-ready reads these from the worker's file, and its README shows them here.
    let mut of_file = file.map(|file| file.section());
    let overrides =
        [Overrides::read(&mut section), of_file.as_mut().map(Overrides::read).unwrap_or_default()];
    checks(overrides, deadline, legacy);
    section.end();
    if let Some(of_file) = of_file {
        of_file.end();
    }
}

fn image(section: &mut Section, legacy: &mut LegacyConfig) {
    let Some(field) = section.take("image") else { return };
    let mut image = field.section();
    let repository = image
        .take("repository")
        .and_then(|repository| repository.checked(validators::is_image, validators::IMAGE));
    let tag = image
        .take("tag")
        .and_then(validators::optional)
        .and_then(|tag| tag.checked(validators::is_image, validators::IMAGE));
    let policies = [ImagePullPolicy::Always, ImagePullPolicy::IfNotPresent, ImagePullPolicy::Never];
    let policies = policies.map(|policy| (policy.as_str(), policy));
    if let Some(policy) =
        image.take("pullPolicy").and_then(validators::optional).and_then(|policy| policy.choice(&policies))
    {
        legacy.gate.worker.image_pull_policy = policy;
    }
    image.end();
    match (repository, tag) {
        (Some(repository), _) if is_old(&repository) => field.warn(&format!(
            "{repository} does not contain our worker: the worker image of the installation is used. If it does contain \
             /nodekeeper-worker, give it a name that does not end with {OLD_IMAGE}"
        )),
        (Some(repository), Some(tag)) => legacy.gate.worker.image = Some(format!("{repository}:{tag}")),
        (Some(repository), None) if repository.contains('@') => legacy.gate.worker.image = Some(repository),
        (Some(_), None) => field.wrong("has no `tag`: name the one to run"),
        (None, Some(_)) => field.wrong("has no `repository`: name it, or leave `image` out"),
        (None, None) => {}
    }
}

/// Whether an image is kube-node-ready's, or a copy of it in another registry.
fn is_old(repository: &str) -> bool {
    let name = repository.rsplit('/').next().unwrap_or_default();
    name.split(['@', ':']).next() == Some(OLD_IMAGE)
}

fn place(section: &mut Section, legacy: &mut LegacyConfig, has_file: bool) {
    if let Some(field) = section.take("namespace").and_then(validators::optional) {
        legacy.namespace = field.checked(validators::is_label, validators::LABEL);
        legacy.outside_objects(&field, "the flag --namespace; the namespace of the release in the chart");
    }
    if let Some(field) = section.take("serviceAccountName").and_then(validators::optional) {
        legacy.service_account = field.checked(validators::is_name, validators::NAME);
        let place = "the flag --worker-service-account; `worker.serviceAccount.name` in the chart";
        legacy.outside_objects(&field, place);
    }
    if let Some(field) = section.take("priorityClassName").and_then(validators::optional) {
        legacy.gate.worker.priority_class_name = field.checked(validators::is_name, validators::NAME);
    }
    if let Some(field) = section.take("configMapName")
        && field.text().is_some()
        && !has_file
    {
        field.idle("workers do not mount it: pass its worker-config.yaml with --worker-config");
    }
}

/// Reads the resources of a worker or an init container.
pub fn resources(field: &Field) -> Resources {
    let mut section = field.section();
    let mut read = |key| {
        let mut quantities = section.section(key).rest();
        // kube-node-ready's chart writes "" for what is not set.
        quantities.retain(|(_, field)| !field.is_blank());
        let quantity = |(name, field): (&str, Field)| {
            let requests = [(name.to_owned(), Quantity(String::new()))].into();
            if (Resources { requests, ..Resources::default() }).unknown_resource().is_some() {
                field.wrong("is not a resource: write cpu, memory, or one such as nvidia.com/gpu");
            }
            Some((
                name.to_owned(),
                field.checked(validators::is_quantity, validators::QUANTITY).map(Quantity)?,
            ))
        };
        quantities.into_iter().filter_map(quantity).collect()
    };
    let (requests, limits) = (read("requests"), read("limits"));
    section.end();
    Resources { requests, limits }
}

/// kube-node-ready takes a toleration without an operator for `Exists`, Kubernetes takes it for `Equal`.
fn toleration(item: &Field) -> Toleration {
    let mut section = item.section();
    let key = section.take("key").and_then(validators::optional);
    let value = section.take("value");
    let value = value.and_then(|value| value.checked(validators::is_value, validators::VALUE));
    let operators = [("Exists", TolerationOperator::Exists), ("Equal", TolerationOperator::Equal)];
    let operator = section.take("operator").and_then(validators::optional);
    let usual = if value.is_some() { TolerationOperator::Equal } else { TolerationOperator::Exists };
    let toleration = Toleration {
        key: key.and_then(|key| key.checked(validators::is_key, validators::KEY)),
        operator: operator.and_then(|operator| operator.choice(&operators)).unwrap_or(usual),
        value,
        effect: section
            .take("effect")
            .and_then(validators::optional)
            .and_then(|effect| gate::effect(&effect)),
        toleration_seconds: section
            .take("tolerationSeconds")
            .and_then(|seconds| seconds.int(0..=i32::MAX))
            .map(i64::from),
    };
    section.end();
    toleration
}

/// Reads the deadline of a worker. kube-node-ready's Job has a deadline, which its README calls a timeout.
fn deadline<'a>(section: &mut Section<'a>) -> Option<(i32, Field<'a>)> {
    let read = |section: &mut Section<'a>, key| {
        let field = section.take(key)?;
        Some((field.int(10..=3_600)?, field))
    };
    let timeout = read(section, "timeoutSeconds");
    let mut job = section.section("job");
    let of_job = read(&mut job, "activeDeadlineSeconds");
    for (key, default) in [("backoffLimit", 2), ("completions", 1), ("parallelism", 1)] {
        if let Some(field) = job.take(key)
            && field.int(0..=i32::MAX).is_some_and(|value| value != default)
        {
            field.idle("a worker is one pod; `reconciliation.maxRetries` limits the attempts");
        }
    }
    if let Some(field) = job.take("ttlSecondsAfterFinished")
        && field.int(0..=i32::MAX).is_some()
    {
        field.idle("workers are deleted once their result is recorded");
    }
    job.end();
    if let (Some((timeout, _)), Some((of_job, field))) = (&timeout, &of_job)
        && timeout != of_job
    {
        field.warn(&format!("is {of_job} and `worker.timeoutSeconds` is {timeout}: the former is used"));
    }
    of_job.or(timeout)
}

/// The settings of checks, which both files can have; the worker's file wins.
#[derive(Default)]
struct Overrides<'a> {
    domains: Option<Field<'a>>,
    timeout: Option<Field<'a>>,
}

impl<'a> Overrides<'a> {
    fn read(section: &mut Section<'a>) -> Self {
        let overrides =
            Self { domains: section.take("dnsTestDomains"), timeout: section.take("checkTimeoutSeconds") };
        if let Some(field) = section.take("maxRetries")
            && field.int(0..=i32::MAX).is_some_and(|value| value != 1)
        {
            field.idle("a worker runs each check once; `reconciliation.maxRetries` limits the attempts");
        }
        if let Some(field) = section.take("retryBackoff")
            && gate::backoff(&field).is_some_and(|value| value != Backoff::Linear)
        {
            field.idle("a worker runs each check once");
        }
        let mut logging = section.section("logging");
        for (key, default) in [("level", "info"), ("format", "json")] {
            if let Some(field) = logging.take(key).and_then(validators::optional)
                && field.text().is_some_and(|value| value != default)
            {
                field.idle("the log of a worker has no levels");
            }
        }
        logging.end();
        if let Some(field) = section.take("dryRun")
            && field.bool() == Some(true)
        {
            field.idle("a NodeGate has `enforcement: DryRun`");
        }
        overrides
    }
}

fn checks(overrides: [Overrides; 2], deadline: Option<(i32, Field)>, legacy: &mut LegacyConfig) {
    let [here, of_file] = overrides;
    let deadlines = &mut legacy.gate.deadlines;
    if let Some((seconds, _)) = &deadline {
        deadlines.worker_seconds = *seconds;
        deadlines.gate_seconds = deadlines.gate_seconds.max(*seconds);
    }
    if let Some(field) = of_file.timeout.or(here.timeout)
        && let Some(seconds) = field.int(1..=600)
    {
        deadlines.check_seconds = seconds;
        let (least, worker) = (seconds + SPARE + 1, deadlines.worker_seconds);
        if worker < least {
            field.wrong(format!(
                "is {seconds}, and a worker has {worker} s for all: raise `worker.timeoutSeconds` to {least} or more"
            ));
        }
    } else if let Some((worker, field)) = deadline
        && worker <= deadlines.check_seconds + SPARE
    {
        let check = deadlines.check_seconds;
        field.wrong(format!(
            "is {worker}, and one check may take {check} s: make it {} or more, or `checkTimeoutSeconds` less",
            check + SPARE + 1
        ));
    }
    if let Some(field) = of_file.domains.or(here.domains) {
        domains(&field, legacy);
    }
}

/// Names are resolved. kube-node-ready lists addresses of DNS servers that should answer among them.
pub fn domains(field: &Field, legacy: &mut LegacyConfig) {
    let items = field.items(16);
    if items.is_empty() && field.is_list() {
        field.wrong("is empty: list names that have to resolve, or leave it out for the API server's name");
    }
    let (mut names, mut servers) = (Vec::new(), Vec::new());
    for item in items {
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        // The CRD takes such texts for incomplete addresses.
        let is_name = |text: &str| {
            validators::is_host(text) && text.contains(|c: char| !c.is_ascii_digit() && c != '.')
        };
        let Some(text) = item.checked(|text| is_address(text) || is_name(text), validators::HOST) else {
            continue;
        };
        if is_address(&text) {
            let address = quoted(&text);
            item.warn(&format!(
                "{address} is an address and resolves without DNS: it is queried as a DNS server"
            ));
            servers.push(text);
        } else {
            names.push(text);
        }
    }
    // All listed names are required. With addresses alone the check uses its default name.
    legacy.gate.checks.dns = Some(Dns { names, servers, ..Dns::default() });
}
