//! Rule: identifiers, reasons, fields and phrases that were replaced by the terms of Kubernetes do not come back.

use std::path::Path;

use super::Violation;
use crate::code;
use crate::repo::{self, File, Repo};

/// Where a retired pattern is refused.
enum Scope {
    /// In Rust code of these folders, outside comments. In all folders, names with an upper-case letter or an
    /// underscore are also refused in backticks, in comments and Markdown.
    Code(&'static [&'static str]),
    /// In the text of every file below these folders, or of all files: strings, comments, docs, the chart and CRDs.
    Text(&'static [&'static str]),
    /// In the path of a file.
    Path,
}

/// One row of the rename table.
struct Retired {
    /// Separated by commas.
    patterns: &'static str,
    instead: &'static str,
    scope: Scope,
}

const fn code(patterns: &'static str, instead: &'static str) -> Retired {
    Retired { patterns, instead, scope: Scope::Code(&[]) }
}

const fn code_in(folders: &'static [&'static str], patterns: &'static str, instead: &'static str) -> Retired {
    Retired { patterns, instead, scope: Scope::Code(folders) }
}

const fn text(patterns: &'static str, instead: &'static str) -> Retired {
    Retired { patterns, instead, scope: Scope::Text(&[]) }
}

const fn text_in(folders: &'static [&'static str], patterns: &'static str, instead: &'static str) -> Retired {
    Retired { patterns, instead, scope: Scope::Text(folders) }
}

const fn path(patterns: &'static str, instead: &'static str) -> Retired {
    Retired { patterns, instead, scope: Scope::Path }
}

const CORE: &[&str] = &["crates/core/"];
const OPERATOR: &[&str] = &["crates/operator/"];
const CORE_AND_OPERATOR: &[&str] = &["crates/core/", "crates/operator/"];
const CHECKS: &[&str] = &["crates/checks/"];
const DEMO: &[&str] = &["crates/demo/"];
/// Where gates are written as YAML. A chart has `image.pullPolicy` by convention.
const GATES: &[&str] = &["charts/nodekeeper/files/crds/", "examples/gate", "examples/remediation"];
const WRITER: &[&str] = &["crates/operator/src/apply"];
const E2E: &[&str] = &["e2e/", "bench/"];
const SIM: &[&str] = &["crates/sim/"];

/// Common words are refused only as a definition (`struct Line`, `mod book`, `fn look_at`) or as a variant (`Event::Is`), and
/// only where they were used. A use without a definition does not compile, so definitions suffice.
const RETIRED: &[Retired] = &[
    // Runtime.
    code(
        "mod term, struct Term, mod hearing, enum Heard, struct Heard, fn hear",
        "`runtime::manager`, `Manager`, `WatchEvent`, `handle_event`",
    ),
    code("mod views, struct Views, trait View", "`cache`, `Cache`, `Cached`"),
    code_in(
        OPERATOR,
        "fn born, fn age_with, fn touches, fn learn, fn insist, fn unsync",
        "`on_insert`, `on_update`, `reconcile_key`, `apply_response`, `force_insert`, `mark_unsynced`",
    ),
    code_in(
        OPERATOR,
        "fn follow, struct Follower, enum At, struct At, struct Keep, trait Keep, enum Keep, struct Part, enum Part",
        "`watch`, `Watcher`, `WatchState`, `Projection`, `Selector`",
    ),
    code_in(
        OPERATOR,
        "Event::All, Event::Is, Event::Gone, Event::UpTo",
        "`Restarted`, `Applied`, `Deleted`, `Bookmark`",
    ),
    code(
        "struct Trouble, enum Trouble, struct Doubtful, enum Doubtful",
        "`WriteError`, `WatchError`, `NetError`, `OutcomeUnknown`",
    ),
    code("fn look_at, fn glance_at", "`reconcile`, `enqueue_if_needed`"),
    code_in(
        CORE_AND_OPERATOR,
        "fn is_settled, fn beat, fn doubtful, in_earnest",
        "`preview`, `heartbeat`, `needs_live_read`, or two functions",
    ),
    code_in(OPERATOR, "Outcome::Settled, Outcome::Again", "`Action::AwaitChange`, `Action::RequeueAfter`"),
    code_in(
        OPERATOR,
        "struct Gate, struct Remediator, struct Look, enum Look, struct Around",
        "`GateReconciler`, `RemediationReconciler`, `Evaluation`, `LiveState`",
    ),
    code_in(
        OPERATOR,
        "mod slots, struct Line, struct Place, enum Place, struct Refusal, enum Refusal, fn wakes",
        "`worker_limiter`, `WorkerLimiter`, `PendingNode`, `CreateBackoff`, `next_wakeup`",
    ),
    code_in(OPERATOR, "mod account, fn account", "`record_effect_metrics`"),
    code_in(
        CORE_AND_OPERATOR,
        "fn tell, struct Notice, struct Tell, enum Tell, pub once",
        "`EventSpec`, `EmitEvent`, `dedup_key`",
    ),
    code_in(
        WRITER,
        "fn shut, fn reopen, fn send_off, fn adopt, fn recognise, fn report, fn ask",
        "`cordon`, `uncordon`, `evict_pod`, `sync_configured_gate`, `adopt_existing_pod`, `patch_gate_status`, `upsert_remediation`",
    ),
    code_in(
        OPERATOR,
        "fn asked, fn permitted, fn same_node",
        "`call`, `ensure_leader`, `node_preconditions`",
    ),
    code("struct Door, enum Door, struct Pages, fn converse", "`Endpoint`, `AdminState`, `serve_connection`"),
    code_in(
        OPERATOR,
        "mod book, struct Book, struct Board, mod seed, struct Level, struct Times, fn took",
        "`registry`, `NodeCollector`, `compat`, `Gauge`, `Histogram`, `observe`",
    ),
    path(
        "metrics/book.rs, metrics/seed.rs, operator/src/term.rs, operator/src/views.rs, operator/src/slots.rs, operator/src/account.rs",
        "`registry`, `compat`, `manager`, `cache`, `worker_limiter`",
    ),
    code_in(
        OPERATOR,
        "mod words, mod tree, struct Loaded, struct Told, fn sweep",
        "`validators`, `spanned_yaml`, `LegacyConfig`, `Overrides`, `resync`",
    ),
    path("config/words.rs, config/tree.rs", "`validators`, `spanned_yaml`"),
    // Gate.
    code_in(
        CORE,
        "mod case, mod blame, mod pace, mod wait, mod open, mod publish, mod select",
        "`enforce`, `outage`, `backoff`, `prerequisites`, `verified`, `node_condition`, `assignment`",
    ),
    path(
        "gate/case.rs, gate/blame.rs, gate/pace.rs, gate/wait.rs, gate/open.rs, gate/publish.rs, gate/select.rs",
        "`enforce`, `outage`, `backoff`, `prerequisites`, `verified`, `node_condition`, `assignment`",
    ),
    code(
        "enum Served, Served::Held, Served::Open, Served::Orphan, Served::Released, Served::Nobody",
        "`Ownership::{Gated,Verified,Unserved,Released,Unmanaged}`",
    ),
    code(
        "fn wish, const PERIODIC, fn tend, fn scatter",
        "`RecheckReason`, `reconcile_verified`, `stable_hash`",
    ),
    code_in(CORE_AND_OPERATOR, "fn spread, fn freeze, fn thaw", "`jitter`, `suspend`, `resume`"),
    code(
        "Effect::Remember, Effect::Ask, Effect::Tell, Effect::Publish, Effect::Regate",
        "`PatchRecord`, `RequestRemediation`, `EmitEvent`, `SetNodeCondition`, `Retaint`",
    ),
    code("Progress::Silent", "`Progress::Inconclusive`"),
    code_in(
        CORE,
        "enum Cause, enum Ending, struct Ending, struct Round, struct Subject, pub spent, pub silent",
        "`InconclusiveReason`, `WorkerResult`, `VerificationScope`, `WorkerIdentity`, `elapsed_seconds`, `inconclusive_streak`; a JSON key keeps its name with `serde(rename)`",
    ),
    code(
        "struct Census, struct Standing, enum Standing, struct Tally, struct Survey",
        "`FleetIndex`, `NodeStatus`, `GateCounts`, `GroupStats`",
    ),
    code("fn bears, pub came", "`has_taint`, `created_at`"),
    // Remediation.
    code_in(
        CORE_AND_OPERATOR,
        "enum Hold, struct Hold, struct Held, enum Held, fn consider, struct Consideration, enum Consideration",
        "`BlockReason`, `Blocked`, `evaluate`, `Approval`",
    ),
    code(
        "fn standstill, fn uncompared, fn the_same",
        "`cluster_block`, `control_group_block`, `resolve_target`",
    ),
    code_in(
        CORE_AND_OPERATOR,
        "struct Request, enum Machine, struct Machine, struct Drainage, enum Drainage, fn housekeep, struct Acting, enum Next",
        "`Remediation`, `Replacement`, `DrainPlan`, `reconcile_policy_status`, `ActInput`, `NextStep`",
    ),
    path(
        "api/brakes.rs, api/policy.rs, remediate/hold.rs, remediate/survey.rs",
        "`remediation_policy.rs`, `gate_types.rs`, `blocked.rs`, `group_stats.rs`",
    ),
    code("enum Fate, struct Fates, struct Fated", "`FailureAction`, or `WorkerBehaviour` in tests"),
    code_in(CORE, "struct Down, enum Down", "`SharedOutage`"),
    // Reasons and API fields.
    text(
        "OtherBoot, BeingRemoved, FailingAlike, FewFail, NoLoop, NotSeen, NodeStays, AnotherGateWins",
        "`NodeRebooted`, `NodeTerminating`, `CommonFailure`, `BelowThreshold`, `NoRepeatedFailure`, `NotObserved`, `DeletionTimedOut`, `LowerPrecedence`",
    ),
    text(
        "quietUntil, quiet_until, calmSince, calm_since, leastVerdicts, least_verdicts",
        "`cooldownUntil`, `belowThresholdSince`, `minVerdicts`",
    ),
    text_in(GATES, "pullPolicy, pullSecrets", "`imagePullPolicy`, `imagePullSecrets`"),
    text("recheckSeconds, recheck_seconds", "`recheckPeriodSeconds`"),
    text("continuous.failures", "`continuous.failureThreshold`"),
    text(
        "inFlightPerGroup, in_flight_per_group, inFlightPerZone, in_flight_per_zone, \"inFlight\", groupPercent, group_percent, \"perHour\", budget.perHour, budget.inFlight",
        "`budget.{maxInFlight,maxInFlightPerGroup,maxInFlightPerZone,maxPerHour,maxGroupPercentPerHour}`",
    ),
    text(
        "totalSeconds, podSeconds, drain.total_seconds, drain.pod_seconds",
        "`drain.timeoutSeconds`, `drain.podOvertimeSeconds`",
    ),
    text("controlPlaneNodes, control_plane_nodes", "`allowedControlPlaneNodes`"),
    text(
        "metrics-seed-names, METRICS_SEED_NAMES, seedNames, seed_names",
        "`--metrics-compat-names`, `compatNames`: a seed is a random seed",
    ),
    text(
        "the seed's file, the seed's names, the seed's metrics, README of the seed, taken for none",
        "\"kube-node-ready\" and plain words: a seed is a random seed",
    ),
    // Checks.
    code_in(
        CHECKS,
        "fn obey, fn complain, fn leave, struct Typed, struct Place, fn unsure, fn fails_by_silence",
        "`run`, `eprint`, `write_report`, `ParsedArgs`, `Environment`, `inconclusive`, `timeout_is_failure`",
    ),
    // Demo, tests, simulator, tools.
    code_in(
        DEMO,
        "mod cast, mod eye, struct Tale, mod stage, mod second, mod ending, mod show",
        "`machines`, `observer`, `History`, `cluster`, `remediation_act`, `verify`, `runner`",
    ),
    path(
        "demo/cast.rs, demo/eye.rs, demo/stage.rs, demo/second.rs, demo/ending.rs, demo/show.rs",
        "`machines`, `observer`, `cluster`, `remediation_act`, `verify`, `runner`",
    ),
    code_in(
        E2E,
        "mod play, mod eye, struct Eye, mod line, struct Line, mod land, struct Land, mod wishes, mod hollow, struct Hollow, mod the_end",
        "`steps`, `pod_observer`, `fault_proxy`, `karpenter_world`, `remediation_helpers`, `fake_kubelet`, `teardown`",
    ),
    code_in(
        E2E,
        "mod passing, mod losing, mod crowding, mod sparing, mod taking",
        "`verification`, `worker_loss`, `scale`, `no_side_effects`, `deletion`",
    ),
    path("e2e/tests/strangers/, e2e/src/hollow.rs", "`third_party_clients`, `fake_kubelet`"),
    code_in(
        SIM,
        "struct Floor, struct Keeper, enum Lie, struct Lie, enum Misfortune, struct Misfortune, mod labeller, mod ledger, struct Ledger",
        "`KubeletPool`, `PodRunner`, `FalseReport`, `ChaosEvent`, `toy_controller`, `history`",
    ),
    code("mod rooms, pub beside", "`file_size`, `background`"),
    text("rules of the house, small-rooms", "\"repository rules\", `file-size`"),
];

/// They quote the retired words.
const EXEMPT: &[&str] =
    &["CHANGELOG.md", "xtask/src/rules/retired_words.rs", "xtask/src/tests/retired_words.rs"];

pub fn retired_words(repo: &Repo) -> Vec<Violation> {
    let files =
        repo.files.iter().filter(|file| !EXEMPT.contains(&file.path.as_str()) && !is_lock(&file.path));
    files.flat_map(check).collect()
}

fn is_lock(path: &str) -> bool {
    path.ends_with("Cargo.lock") || path.ends_with("go.sum")
}

fn check(file: &File) -> Vec<Violation> {
    let is_rust = repo::is_rust(&file.path);
    let lines_with = |word: &str, shown: fn(&str) -> &str| -> Vec<usize> {
        let lines = file.text.lines().enumerate();
        lines.filter(|(_, line)| code::has_word(shown(line), word)).map(|(index, _)| index + 1).collect()
    };
    let mut found = Vec::new();
    for retired in RETIRED {
        for pattern in retired.patterns.split(", ") {
            let lines = match retired.scope {
                Scope::Path if file.path.contains(pattern) => vec![1],
                Scope::Text(folders) if is_below(file, folders) => lines_with(pattern, |line| line),
                Scope::Path | Scope::Text(_) => Vec::new(),
                Scope::Code(folders) => {
                    let mut lines = Vec::new();
                    if is_rust && is_below(file, folders) {
                        lines = lines_with(pattern, code::without_comment);
                    }
                    if folders.is_empty() && (is_rust || is_markdown(&file.path)) {
                        lines.extend(quoted(pattern).iter().flat_map(|name| lines_with(name, |line| line)));
                    }
                    lines
                }
            };
            found.extend(lines.into_iter().map(|line| (line, pattern, retired.instead)));
        }
    }
    found.sort_unstable();
    // A name in backticks matches each of its definitions.
    found.dedup_by_key(|(line, _, instead)| (*line, *instead));
    let message = |pattern, instead| format!("`{pattern}` is retired: use {instead}");
    found
        .into_iter()
        .map(|(line, pattern, instead)| Violation::new(&file.path, line, message(pattern, instead)))
        .collect()
}

fn is_below(file: &File, folders: &[&str]) -> bool {
    folders.is_empty() || folders.iter().any(|folder| file.path.starts_with(folder))
}

fn is_markdown(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ending| ending == "md")
}

/// The name of a definition such as `struct Census` in backticks, except for plain lower-case words.
fn quoted(pattern: &str) -> Option<String> {
    let name = pattern.rsplit(' ').next().unwrap_or(pattern);
    (name.contains('_') || name.contains(char::is_uppercase)).then(|| format!("`{name}`"))
}

#[cfg(test)]
#[path = "../tests/retired_words.rs"]
mod tests;
