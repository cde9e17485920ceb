//! `worker`, and the worker's own file: how a worker is run, and what it checks.

use std::net::IpAddr;

use nodekeeper_core::api::{Backoff, PullPolicy, Quantity, Resources, Toleration};
use nodekeeper_core::checks::Dns;

use super::section::{Field, Section, quoted};
use super::{Loaded, OLD_IMAGE, containers, gate, words};

/// A worker keeps so much for itself: the rule of the CRD.
const SPARE: i32 = 5;

/// Reads both.
pub fn read<'a>(root: &mut Section<'a>, file: Option<Field<'a>>, loaded: &mut Loaded) {
    let mut section = root.section("worker");
    image(&mut section, loaded);
    place(&mut section, loaded, file.is_some());
    let worker = &mut loaded.gate.worker;
    worker.resources = section.take("resources").map(|field| resources(&field));
    if let Some(field) = section.take("tolerations") {
        worker.tolerations = field.items(32).iter().map(toleration).collect();
    }
    containers::read(&mut section, worker);
    let deadline = deadline(&mut section);
    // The seed has these in a file of their own, and its README has them here.
    let mut of_file = file.map(|file| file.section());
    let told = [Told::read(&mut section), of_file.as_mut().map(Told::read).unwrap_or_default()];
    checks(told, deadline, loaded);
    section.end();
    if let Some(of_file) = of_file {
        of_file.end();
    }
}

fn image(section: &mut Section, loaded: &mut Loaded) {
    let Some(field) = section.take("image") else { return };
    let mut image = field.section();
    let repository =
        image.take("repository").and_then(|repository| repository.checked(words::is_image, words::IMAGE));
    let tag = image
        .take("tag")
        .and_then(words::optional)
        .and_then(|tag| tag.checked(words::is_image, words::IMAGE));
    let policies = [PullPolicy::Always, PullPolicy::IfNotPresent, PullPolicy::Never];
    let policies = policies.map(|policy| (policy.as_str(), policy));
    if let Some(policy) =
        image.take("pullPolicy").and_then(words::optional).and_then(|policy| policy.choice(&policies))
    {
        loaded.gate.worker.pull_policy = policy;
    }
    image.end();
    match (repository, tag) {
        (Some(repository), _) if repository == OLD_IMAGE => field.warn(&format!(
            "there are no workers of ours in {OLD_IMAGE}: the image that the controller was installed with is used"
        )),
        (Some(repository), Some(tag)) => loaded.gate.worker.image = Some(format!("{repository}:{tag}")),
        (Some(repository), None) if repository.contains('@') => loaded.gate.worker.image = Some(repository),
        (Some(_), None) => field.wrong("has no `tag`: name the one to run"),
        (None, Some(_)) => field.wrong("has no `repository`: name it, or leave `image` out"),
        (None, None) => {}
    }
}

fn place(section: &mut Section, loaded: &mut Loaded, has_file: bool) {
    let mut named = |key, right: fn(&str) -> bool, fix| {
        section.take(key).and_then(words::optional).and_then(|field| field.checked(right, fix))
    };
    loaded.namespace = named("namespace", words::is_label, words::LABEL);
    loaded.service_account = named("serviceAccountName", words::is_name, words::NAME);
    loaded.gate.worker.priority_class_name = named("priorityClassName", words::is_name, words::NAME);
    if let Some(field) = section.take("configMapName")
        && field.text().is_some()
        && !has_file
    {
        field.idle("no worker mounts it: give its worker-config.yaml with --worker-config");
    }
}

/// Quantities by resource, for workers and for init containers.
pub fn resources(field: &Field) -> Resources {
    let mut section = field.section();
    let mut read = |key| {
        let mut quantities = section.section(key).rest();
        // The seed writes "" for what is not set.
        quantities.retain(|(_, field)| !field.is_blank());
        let quantity = |(name, field): (&str, Field)| {
            if !words::is_key(name) {
                field.wrong("is the name of no resource: write cpu, memory, or one such as nvidia.com/gpu");
            }
            Some((name.to_owned(), field.checked(words::is_quantity, words::QUANTITY).map(Quantity)?))
        };
        quantities.into_iter().filter_map(quantity).collect()
    };
    let (requests, limits) = (read("requests"), read("limits"));
    section.end();
    Resources { requests, limits }
}

fn toleration(item: &Field) -> Toleration {
    let mut section = item.section();
    let one_of = |section: &mut Section, key, choices: &[&'static str]| {
        let choices: Vec<_> = choices.iter().map(|word| (*word, *word)).collect();
        section.take(key).and_then(words::optional)?.choice(&choices).map(str::to_owned)
    };
    let toleration = Toleration {
        key: section
            .take("key")
            .and_then(words::optional)
            .and_then(|key| key.checked(words::is_key, words::KEY)),
        operator: one_of(&mut section, "operator", &["Exists", "Equal"]),
        value: section.take("value").and_then(|value| value.checked(words::is_value, words::VALUE)),
        effect: one_of(&mut section, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        toleration_seconds: section
            .take("tolerationSeconds")
            .and_then(|seconds| seconds.int(0..=i32::MAX))
            .map(i64::from),
    };
    section.end();
    toleration
}

/// How long a worker may take. The seed's Job has a deadline; its README calls the same a timeout.
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
            && field.int(0..=i32::MAX).is_some_and(|told| told != default)
        {
            field.idle("a worker is one pod, and `reconciliation.maxRetries` counts the attempts");
        }
    }
    if let Some(field) = job.take("ttlSecondsAfterFinished")
        && field.int(0..=i32::MAX).is_some()
    {
        field.idle("workers are deleted once what they found is recorded");
    }
    job.end();
    if let (Some((timeout, _)), Some((of_job, field))) = (&timeout, &of_job)
        && timeout != of_job
    {
        field.warn(&format!("is {of_job} and `worker.timeoutSeconds` is {timeout}: the former is used"));
    }
    of_job.or(timeout)
}

/// What a worker is told about its checks.
#[derive(Default)]
struct Told<'a> {
    domains: Option<Field<'a>>,
    timeout: Option<Field<'a>>,
}

impl<'a> Told<'a> {
    fn read(section: &mut Section<'a>) -> Self {
        let told =
            Self { domains: section.take("dnsTestDomains"), timeout: section.take("checkTimeoutSeconds") };
        if let Some(field) = section.take("maxRetries")
            && field.int(0..=i32::MAX).is_some_and(|told| told != 1)
        {
            field.idle("a worker looks once; `reconciliation.maxRetries` counts the attempts");
        }
        if let Some(field) = section.take("retryBackoff")
            && gate::backoff(&field).is_some_and(|told| told != Backoff::Linear)
        {
            field.idle("a worker looks once");
        }
        let mut logging = section.section("logging");
        for (key, default) in [("level", "info"), ("format", "json")] {
            if let Some(field) = logging.take(key).and_then(words::optional)
                && field.text().is_some_and(|told| told != default)
            {
                field.idle("a worker's log is short, and for people");
            }
        }
        logging.end();
        if let Some(field) = section.take("dryRun")
            && field.bool() == Some(true)
        {
            field.idle("a NodeGate has `enforcement: DryRun`");
        }
        told
    }
}

fn checks(told: [Told; 2], deadline: Option<(i32, Field)>, loaded: &mut Loaded) {
    let [here, of_file] = told;
    let deadlines = &mut loaded.gate.deadlines;
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
        domains(&field, loaded);
    }
}

/// Names are resolved. An address needs no DNS: the seed lists it because that server ought to answer.
fn domains(field: &Field, loaded: &mut Loaded) {
    let items = field.items(16);
    if items.is_empty() && field.is_list() {
        field.wrong("is empty: name what has to resolve, or leave it out for the API server's name");
    }
    let (mut names, mut servers) = (Vec::new(), Vec::new());
    for item in items {
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        let Some(told) = item.checked(|text| is_address(text) || words::is_host(text), words::HOST) else {
            continue;
        };
        if is_address(&told) {
            let address = quoted(&told);
            item.warn(&format!(
                "{address} is an address and resolves without DNS: it is asked as a DNS server"
            ));
            servers.push(told);
        } else {
            names.push(told);
        }
    }
    // What somebody lists is required; with addresses alone the cluster's own name is asked for.
    let usual = Dns::default();
    let names = if names.is_empty() { usual.names } else { names };
    loaded.gate.checks.dns = Some(Dns { names, servers, optional: Vec::new(), ..Dns::default() });
}
