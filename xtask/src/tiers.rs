//! The tiers of `make test`, from cheap to real. Adding one is one entry.
//!
//! Cargo always gets `--workspace`, never `-p`: with `-p` it unites the features of fewer crates, and builds half of
//! the dependencies once more. With `--workspace` every tier reuses what the first one built.

/// A group of tests that cost about the same.
pub struct Tier {
    /// As the summary calls it.
    pub name: &'static str,
    /// What is being done.
    pub what: &'static str,
    /// How long it usually takes on two cores: cold, then warm.
    pub usually: &'static str,
    /// A tier without which this one makes no sense.
    pub needs: Option<&'static str>,
    /// It needs the cores and nothing else: it runs beside those that follow, which wait most of their time for a real
    /// clock, and yields to them.
    pub beside: bool,
    /// In this order; one that fails does not stop the next.
    pub steps: &'static [Step],
}

/// One command, or something as good as one.
pub enum Step {
    /// Cargo with these arguments.
    Cargo(&'static [&'static str]),
    /// The test files of one member: these, or all.
    Tests(&'static str, Which),
    /// A binary of the workspace; exit code 3 means that it cannot be had on this machine.
    Binary(&'static str),
    /// Each rule of the house counts as one.
    Rules,
    /// cargo-deny, installed into `.tools` if it is nowhere else.
    Deny,
}

/// Which test files of a member.
pub enum Which {
    /// All of them.
    All,
    /// Only these.
    Named(&'static [&'static str]),
    /// Only this one, so many of its tests at once: on a real clock they wait most of their time.
    Waiting(&'static str, &'static str),
}

/// The first thing that is done; nothing can follow if it fails.
pub const BUILD: Tier = Tier {
    name: "build",
    what: "the whole workspace and its tests, once",
    usually: "9 min, then 1 s",
    needs: None,
    beside: false,
    steps: &[Step::Cargo(&["build", "--workspace", "--all-targets"])],
};

/// Everything that `make test` runs.
pub const TIERS: &[Tier] = &[
    Tier {
        name: "lint",
        what: "format, clippy, the rules of the house",
        usually: "1 min, then 2 s",
        needs: None,
        beside: false,
        steps: &[
            Step::Cargo(&["fmt", "--all", "--check"]),
            Step::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
            Step::Rules,
        ],
    },
    Tier {
        name: "dependencies",
        what: "cargo-deny: licences, bans, sources",
        usually: "1 min to build cargo-deny, then 1 s",
        needs: None,
        beside: false,
        steps: &[Step::Deny],
    },
    Tier {
        name: "unit",
        what: "pure functions and small parts, in process",
        usually: "10 s",
        needs: None,
        beside: false,
        steps: &[
            Step::Cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--", "--show-output"]),
            Step::Cargo(&["test", "--workspace", "--no-fail-fast", "--doc"]),
            Step::Tests("xtask", Which::All),
        ],
    },
    Tier {
        name: "worker",
        what: "the checks on real sockets, and the worker's binary as a kubelet meets it",
        usually: "10 s",
        needs: None,
        beside: false,
        steps: &[Step::Tests("crates/checks", Which::All)],
    },
    Tier {
        name: "sim",
        what: "scenarios and seeds on the embedded cluster",
        usually: "20 min",
        needs: None,
        beside: true,
        steps: &[Step::Tests("crates/sim", Which::All)],
    },
    Tier {
        name: "front door",
        what: "what is served on real sockets, and the binary as a person meets it, the demo included",
        usually: "90 s",
        needs: None,
        beside: false,
        steps: &[Step::Tests("crates/operator", Which::All), Step::Tests("crates/nodekeeper", Which::All)],
    },
    Tier {
        name: "kubernetes",
        what: "etcd and Kubernetes from their Go modules, into a cache outside the repository",
        usually: "5 to 9 min, then 1 s",
        needs: None,
        beside: false,
        steps: &[Step::Binary("kubernetes")],
    },
    Tier {
        name: "node programs",
        what: "packages, kubelet, kube-proxy, CoreDNS and Helm, into the same cache",
        usually: "5 min, then 1 s",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Binary("nodes")],
    },
    Tier {
        name: "control plane",
        what: "a real API server starts, serves and leaves nothing behind",
        usually: "20 s",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Tests("e2e", Which::Named(&["control_plane"]))],
    },
    Tier {
        name: "strangers",
        what: "kubectl, client-go and the Python client on the embedded cluster's port",
        usually: "30 s to build and install them, then 10 s",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Tests("e2e", Which::Named(&["strangers"]))],
    },
    Tier {
        name: "conformance",
        what: "the same API cases on the embedded cluster and on the real one",
        usually: "1 min",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Tests("e2e", Which::Named(&["conformance"]))],
    },
    Tier {
        name: "gate",
        what: "scenarios of the gate and of remediation, each on the embedded cluster and on a real control plane",
        usually: "4 min",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Tests("e2e", Which::Waiting("gate", "3"))],
    },
    Tier {
        name: "karpenter",
        what: "a real Karpenter whose nodes go through the gate, and are replaced; it and kwok from their Go modules, into the same cache",
        usually: "4 min to build them, then 2 min",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Binary("karpenter"), Step::Tests("e2e", Which::Named(&["karpenter"]))],
    },
    Tier {
        name: "rights",
        what: "the chart's roles: nothing is granted that is not needed, and nothing that is needed is refused",
        usually: "30 s",
        needs: Some("node programs"),
        beside: false,
        steps: &[Step::Tests("e2e", Which::Named(&["rbac"]))],
    },
    Tier {
        name: "nodes",
        what: "real nodes run pods, resolve names, fail, boot, and leave nothing behind",
        usually: "75 s",
        needs: Some("node programs"),
        beside: false,
        steps: &[Step::Tests("e2e", Which::Named(&["nodes"]))],
    },
    Tier {
        name: "walk",
        what: "nodes through the gate, on the embedded cluster, a real control plane and real nodes",
        usually: "3 min to build what goes into images, then 4 min",
        needs: Some("kubernetes"),
        beside: false,
        steps: &[Step::Binary("images"), Step::Tests("e2e", Which::Named(&["walk"]))],
    },
];

/// Whether a tier runs the test file `target` of `member`.
pub fn runs(member: &str, target: &str) -> bool {
    TIERS.iter().flat_map(|tier| tier.steps).any(|step| match step {
        Step::Tests(folder, Which::All) => *folder == member,
        Step::Tests(folder, Which::Named(names)) => *folder == member && names.contains(&target),
        Step::Tests(folder, Which::Waiting(name, _)) => *folder == member && *name == target,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_an_earlier_tier() {
        for (index, tier) in TIERS.iter().enumerate() {
            if let Some(need) = tier.needs {
                assert!(TIERS[..index].iter().any(|earlier| earlier.name == need), "{}", tier.name);
            }
        }
    }

    #[test]
    fn cargo_builds_the_workspace_as_one() {
        for step in TIERS.iter().chain([&BUILD]).flat_map(|tier| tier.steps) {
            if let Step::Cargo(arguments) = step
                && arguments[0] != "fmt"
            {
                assert!(arguments.contains(&"--workspace") && !arguments.contains(&"-p"), "{arguments:?}");
            }
        }
    }

    #[test]
    fn test_files_are_found_in_their_tier() {
        assert!(runs("e2e", "conformance"));
        assert!(runs("crates/sim", "anything"));
        assert!(!runs("e2e", "anything"));
        assert!(!runs("crates/core", "anything"));
    }
}
