//! A real Karpenter whose nodes go through the gate. What a story needs of the gate is told in the gate's own words.

mod deletion;
#[path = "../gate/fault_proxy.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod fault_proxy;
mod karpenter_world;
mod log;
mod no_side_effects;
mod node_observer;
#[path = "../gate/pod_observer.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod pod_observer;
mod remediation_helpers;
mod replacement;
#[path = "../gate/steps.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod steps;
mod verification;
#[path = "../gate/worker.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod worker;
#[path = "../gate/world.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod world;

/// Each scenario becomes a test.
macro_rules! scenarios {
    ($($module:ident { $($name:ident,)+ })+) => {
        mod with_a_real_karpenter {
            use anyhow::Result;
            use nodekeeper_e2e::or_skip;

            use crate::karpenter_world::KarpenterWorld;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    let Some(world) = or_skip(KarpenterWorld::start().await)? else { return Ok(()) };
                    crate::$module::$name(world).await
                }
            )+)+
        }
    };
}

scenarios! {
    verification {
        a_pool_that_scales_up_gets_nodes_that_were_opened,
        no_node_is_opened_before_karpenter_has_registered_it,
        a_pool_with_the_taint_in_the_wrong_place_is_told,
        the_example_of_a_pool_is_for_the_example_of_a_gate,
        an_operator_that_may_not_read_claims_opens_nodes_all_the_same,
    }
    replacement {
        a_node_that_never_passes_has_its_claim_deleted,
        a_broken_pool_is_not_replaced_for_ever,
    }
    no_side_effects {
        a_claim_that_may_not_be_read_deletes_nothing,
        a_node_that_karpenter_drains_is_neither_cordoned_nor_evicted_from,
        no_claim_is_deleted_before_karpenter_has_registered_its_node,
    }
    deletion {
        a_node_that_karpenter_takes_away_is_left_to_it,
    }
}
