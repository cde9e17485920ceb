//! The table of test tiers that `make test` runs, from cheap to expensive.
//!
//! Cargo always gets `--workspace`, never `-p`: with `-p` it unifies the features of fewer crates and rebuilds half of the
//! dependencies. With `--workspace` every tier reuses the first build.

pub struct Tier {
    pub name: &'static str,
    pub what: &'static str,
    /// The usual duration on two cores: cold, then warm.
    pub usually: &'static str,
    /// The tiers that must have succeeded before this one runs.
    pub needs: &'static [&'static str],
    pub lane: Lane,
    /// Steps run in order. A failed step does not stop the next.
    pub steps: &'static [Step],
}

/// Lanes run at the same time. The tiers of a lane run one after the other, in the order of the table.
///
/// With two cores the sum of all work is what takes the time, so no lane leaves a core idle that another could use:
/// tests mostly wait for a real clock, and what they do not need yet is built meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Tests,
    /// Builds what later tests need.
    Prepare,
    /// CPU-bound, and needed by nothing.
    Seeds,
}

impl Lane {
    pub const ALL: [Self; 3] = [Self::Tests, Self::Prepare, Self::Seeds];

    /// How much the lane yields to the others, for `nice`.
    pub fn niceness(self) -> u8 {
        match self {
            Self::Tests => 0,
            Self::Prepare => 10,
            Self::Seeds => 19,
        }
    }
}

pub enum Step {
    /// Cargo with these arguments.
    Cargo(&'static [&'static str]),
    /// Test targets of one workspace member.
    Tests(&'static str, Which),
    /// A binary of the workspace.
    Binary(&'static str),
    /// One of `nodekeeper_prepare::SETS`. Exit code 3 means that this machine lacks a dependency.
    Prepare(&'static str),
    /// The repository rules; each counts as one test.
    Rules,
    /// cargo-deny, installed into `.tools` if it is nowhere else.
    Deny,
}

pub enum Which {
    All,
    Named(&'static [&'static str]),
    /// One test target and its `--test-threads`: its tests mostly wait for a real clock.
    WithThreads(&'static str, &'static str),
}

/// The first tier of the tests. If it fails, no other tier is started.
pub const BUILD: &str = "build";

pub const TIERS: &[Tier] = &[
    Tier {
        name: BUILD,
        what: "the whole workspace and its tests, once",
        usually: "9 min, then 1 s",
        needs: &[],
        lane: Lane::Tests,
        steps: &[Step::Cargo(&["build", "--workspace", "--all-targets"])],
    },
    Tier {
        name: "lint",
        what: "format, clippy, repository rules",
        usually: "1 min, then 2 s",
        needs: &[],
        lane: Lane::Tests,
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
        needs: &[],
        lane: Lane::Tests,
        steps: &[Step::Deny],
    },
    Tier {
        name: "unit",
        what: "unit tests of all crates",
        usually: "10 s",
        needs: &[],
        lane: Lane::Tests,
        steps: &[
            Step::Cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--", "--show-output"]),
            Step::Cargo(&["test", "--workspace", "--no-fail-fast", "--doc"]),
            Step::Tests("xtask", Which::All),
        ],
    },
    Tier {
        name: "worker",
        what: "the checks on real sockets, and the worker binary",
        usually: "10 s",
        needs: &[],
        lane: Lane::Tests,
        steps: &[Step::Tests("crates/checks", Which::All)],
    },
    Tier {
        name: "sim",
        what: "scenarios and seeds on the embedded cluster",
        usually: "14 min",
        needs: &[BUILD],
        lane: Lane::Seeds,
        steps: &[Step::Tests("crates/sim", Which::All)],
    },
    Tier {
        name: "binaries",
        what: "HTTP endpoints on real sockets, and the nodekeeper binary including the demo",
        usually: "90 s",
        needs: &[],
        lane: Lane::Tests,
        steps: &[Step::Tests("crates/operator", Which::All), Step::Tests("crates/nodekeeper", Which::All)],
    },
    Tier {
        name: "kubernetes",
        what: "etcd and Kubernetes from their Go modules, into a cache outside the repository",
        usually: "5 to 9 min, then 1 s",
        needs: &[],
        lane: Lane::Prepare,
        steps: &[Step::Prepare("kubernetes")],
    },
    Tier {
        name: "karpenter programs",
        what: "Karpenter and kwok, into the same cache",
        usually: "4 min, then 1 s",
        needs: &[],
        lane: Lane::Prepare,
        steps: &[Step::Prepare("karpenter")],
    },
    Tier {
        name: "node programs",
        what: "packages, kubelet, kube-proxy, CoreDNS, Helm 4 and Helm 3, into the same cache",
        usually: "7 min, then 1 s",
        needs: &["kubernetes"],
        lane: Lane::Prepare,
        steps: &[Step::Prepare("nodes")],
    },
    Tier {
        name: "images",
        what: "the static binaries of controller and worker",
        usually: "3 min, then 1 s",
        needs: &[BUILD],
        lane: Lane::Prepare,
        steps: &[Step::Binary("images")],
    },
    Tier {
        name: "control plane",
        what: "a real API server starts, serves and is torn down completely",
        usually: "20 s",
        needs: &["kubernetes"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["control_plane"]))],
    },
    Tier {
        name: "third-party clients",
        what: "kubectl, client-go and the Python client against the embedded cluster",
        usually: "30 s to build and install them, then 10 s",
        needs: &["kubernetes"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["third_party_clients"]))],
    },
    Tier {
        name: "conformance",
        what: "the same API cases on the embedded cluster and on the real one",
        usually: "1 min",
        needs: &["kubernetes"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["conformance"]))],
    },
    Tier {
        name: "gate",
        what: "scenarios of the gate and of remediation, each on the embedded cluster and on a real control plane",
        usually: "4 min",
        needs: &["kubernetes"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::WithThreads("gate", "3"))],
    },
    Tier {
        name: "karpenter",
        what: "gate and remediation with a real Karpenter and kwok",
        usually: "2 min",
        needs: &["kubernetes", "karpenter programs"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["karpenter"]))],
    },
    Tier {
        name: "rbac",
        what: "the chart's roles grant exactly what the components need",
        usually: "30 s",
        needs: &["node programs"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["rbac"]))],
    },
    Tier {
        name: "nodes",
        what: "real nodes run pods, resolve names, fail, reboot and are torn down completely",
        usually: "75 s",
        needs: &["node programs"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["nodes"]))],
    },
    Tier {
        name: "walk",
        what: "whole scenarios on the embedded cluster, a real control plane and real nodes",
        usually: "9 min",
        needs: &["kubernetes", "images"],
        lane: Lane::Tests,
        steps: &[Step::Tests("e2e", Which::Named(&["walk"]))],
    },
];

/// Whether a tier runs the test target `target` of `member`.
pub fn runs(member: &str, target: &str) -> bool {
    TIERS.iter().flat_map(|tier| tier.steps).any(|step| match step {
        Step::Tests(folder, Which::All) => *folder == member,
        Step::Tests(folder, Which::Named(names)) => *folder == member && names.contains(&target),
        Step::Tests(folder, Which::WithThreads(name, _)) => *folder == member && *name == target,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_tiers_run_earlier_and_a_need_is_no_deadlock() {
        for (index, tier) in TIERS.iter().enumerate() {
            for need in tier.needs {
                assert!(TIERS[..index].iter().any(|earlier| earlier.name == *need), "{}", tier.name);
            }
        }
    }

    #[test]
    fn every_tier_that_runs_our_code_needs_the_build() {
        for tier in TIERS.iter().filter(|tier| tier.name != BUILD && tier.lane != Lane::Tests) {
            let ours = !matches!(tier.steps, [Step::Prepare(_)]);
            assert_eq!(ours, tier.needs.contains(&BUILD), "{}", tier.name);
        }
    }

    #[test]
    fn what_is_prepared_is_a_known_set() {
        let steps = TIERS.iter().flat_map(|tier| tier.steps);
        let sets = steps.filter_map(|step| if let Step::Prepare(set) = step { Some(*set) } else { None });
        assert_eq!(sets.collect::<Vec<_>>(), nodekeeper_prepare::SETS);
    }

    #[test]
    fn cargo_always_builds_the_whole_workspace() {
        for step in TIERS.iter().flat_map(|tier| tier.steps) {
            if let Step::Cargo(arguments) = step
                && arguments[0] != "fmt"
            {
                assert!(arguments.contains(&"--workspace") && !arguments.contains(&"-p"), "{arguments:?}");
            }
        }
    }

    #[test]
    fn test_targets_are_found_in_their_tier() {
        assert!(runs("e2e", "conformance"));
        assert!(runs("crates/sim", "anything"));
        assert!(!runs("e2e", "anything"));
        assert!(!runs("crates/core", "anything"));
    }
}
