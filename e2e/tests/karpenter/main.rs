//! A real Karpenter whose nodes go through the gate. What a story needs of the gate is told in the gate's own words.

mod eye;
mod land;
#[path = "../gate/line.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod line;
mod log;
mod passing;
#[path = "../gate/play.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod play;
mod replacing;
mod sparing;
mod taking;
mod wishes;
#[path = "../gate/worker.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod worker;
#[path = "../gate/eye.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod workers;
#[path = "../gate/world.rs"]
#[expect(dead_code, reason = "the scenarios of the gate need more of it")]
mod world;

/// Each scenario becomes a test.
macro_rules! scenarios {
    ($($room:ident { $($name:ident,)+ })+) => {
        mod with_a_real_karpenter {
            use anyhow::Result;
            use nodekeeper_e2e::or_skip;

            use crate::land::Land;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> Result<()> {
                    let Some(land) = or_skip(Land::start().await)? else { return Ok(()) };
                    crate::$room::$name(land).await
                }
            )+)+
        }
    };
}

scenarios! {
    passing {
        a_pool_that_scales_up_gets_nodes_that_were_opened,
        no_node_is_opened_before_karpenter_has_registered_it,
        a_pool_with_the_taint_in_the_wrong_place_is_told,
        the_example_of_a_pool_is_for_the_example_of_a_gate,
        an_operator_that_may_not_read_claims_opens_nodes_all_the_same,
    }
    replacing {
        a_node_that_never_passes_has_its_claim_deleted,
        a_broken_pool_is_not_replaced_for_ever,
    }
    sparing {
        a_claim_that_may_not_be_read_deletes_nothing,
        a_node_that_karpenter_drains_is_neither_cordoned_nor_evicted_from,
        no_claim_is_deleted_before_karpenter_has_registered_its_node,
    }
    taking {
        a_node_that_karpenter_takes_away_is_left_to_it,
    }
}
