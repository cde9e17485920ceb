//! The gate, scenario by scenario: each told once, and run on the embedded cluster and on a real control plane. Names
//! that begin with a number are about that flaw of the system that the gate takes after.

mod controller_crash;
mod drain;
mod fake_kubelet;
mod fault_proxy;
mod gate_changes;
mod gate_selection;
mod no_side_effects;
mod outages;
mod pod_observer;
mod remediation;
mod remediation_limits;
mod reverification;
mod scale;
mod schema_rules;
mod simulated;
mod steps;
mod verification;
mod worker;
mod worker_loss;
mod world;

/// Each scenario becomes one test in each world.
macro_rules! scenarios {
    ($($module:ident { $($name:ident,)+ })+) => {
        mod on_the_embedded_cluster {
            use anyhow::Result;

            use crate::simulated::{Simulated, on_a_paused_clock};

            $($(
                #[test]
                fn $name() -> Result<()> {
                    on_a_paused_clock(async { crate::$module::$name(Simulated::start()?).await })
                }
            )+)+
        }

        mod on_a_real_control_plane {
            use anyhow::Result;
            use nodekeeper_e2e::or_skip;

            use crate::fake_kubelet::FakeKubeletWorld;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_makes_no_sense_is_refused_with_the_fix() -> Result<()> {
                let Some(world) = or_skip(FakeKubeletWorld::start().await)? else { return Ok(()) };
                crate::schema_rules::what_makes_no_sense_is_refused_with_the_fix(world).await
            }

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    let Some(world) = or_skip(FakeKubeletWorld::start().await)? else { return Ok(()) };
                    crate::$module::$name(world).await
                }
            )+)+
        }
    };
}

/// These wait for comparisons and deadlines, minutes each on a real clock: they have a world in which minutes pass in
/// no time. What the API server does in them is in the others.
macro_rules! embedded {
    ($($module:ident { $($name:ident,)+ })+) => {
        mod on_a_clock_of_its_own {
            use anyhow::Result;

            use crate::simulated::{Simulated, on_a_paused_clock};

            $($(
                #[test]
                fn $name() -> Result<()> {
                    on_a_paused_clock(async { crate::$module::$name(Simulated::start()?).await })
                }
            )+)+
        }
    };
}

embedded! {
    remediation {
        a_controller_that_is_killed_at_any_write_of_a_replacement_ends_it_once,
    }
    remediation_limits {
        a_dry_run_says_what_it_would_do,
        a_node_that_nobody_replaces_stays,
        nodes_and_pods_that_opted_out_are_left_alone,
        the_control_plane_is_left_alone_unless_it_is_named,
        no_more_than_the_budget_allows,
    }
    drain {
        a_drain_that_a_budget_blocks_is_given_up_and_asked_for_again,
        a_pause_ends_a_drain_and_frees_the_node,
        a_cordon_of_a_person_is_never_undone,
    }
}

scenarios! {
    remediation {
        a_hopeless_node_is_replaced,
        a_person_has_a_node_replaced,
        i08_a_namesake_is_never_touched,
    }
    outages {
        i02_when_names_resolve_nowhere_no_node_is_blamed,
    }
    verification {
        f01_a_finished_worker_opens_the_gate,
        f04_node_names_may_be_as_long_as_they_are,
        f05_a_worker_finds_its_node_by_name,
        f07_a_node_that_is_tainted_again_is_verified_again,
        f08_a_failed_attempt_is_followed_by_the_next,
        f09_a_node_that_never_passes_is_told_and_heals,
        f11_workers_do_not_stay,
        f16_no_worker_before_the_node_is_ready,
        a_forged_label_opens_nothing,
        a_namesake_is_another_node,
    }
    worker_loss {
        a_worker_that_is_deleted_is_made_again,
        a_worker_that_is_evicted_blames_nobody,
        a_worker_without_memory_blames_nobody,
        an_image_that_cannot_be_had_blames_nobody,
        a_node_that_goes_takes_its_worker_with_it,
        a_quota_that_refuses_workers_blames_nobody,
    }
    controller_crash {
        f06_a_controller_that_is_killed_at_any_write_loses_nothing,
        f06_the_next_leader_goes_on_with_the_same_worker,
        f10_a_read_that_fails_is_no_lost_worker,
        f12_only_workers_are_read,
    }
    scale {
        f03_two_taints_go_and_no_foreign_one,
        f15_hopeless_nodes_do_not_starve_the_healthy,
        f15_a_thousand_nodes_at_once_stay_within_the_cap,
    }
    gate_changes {
        a_gate_that_is_edited_begins_anew,
        a_gate_that_is_deleted_leaves_the_node_alone,
        a_gate_that_is_paused_opens_nothing,
    }
    gate_selection {
        a_dry_run_tells_and_writes_no_node,
        a_daemon_set_that_is_late_is_waited_for,
        of_two_gates_the_one_with_priority_serves,
        a_node_that_no_gate_selects_is_told,
    }
    no_side_effects {
        f13_nodes_that_fail_are_not_deleted,
        f14_nodes_are_read_and_patched_and_nothing_else,
    }
    reverification {
        f07_a_label_that_is_removed_comes_back_by_a_worker,
        f07_a_verified_node_is_looked_at_when_asked_for,
        f07_a_failed_node_is_looked_at_when_asked_for,
        f07_a_verified_node_that_boots_is_looked_at,
        f07_only_a_failure_taints_a_verified_node,
    }
}
