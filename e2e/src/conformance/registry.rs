//! The groups of cases. A file's `cases!` line names its cases; its line here makes them known.

use super::Case;

/// Defines `cases`, the cases of a file.
///
/// Those after `slow` wait for controllers that take their time: they begin first and may take longer.
macro_rules! cases {
    ($group:literal: $($name:ident),* $(,)? $(; slow: $($late:ident),* $(,)?)?) => {
        pub(super) fn cases() -> Vec<super::Case> {
            vec![
                $(super::Case {
                    group: $group,
                    name: stringify!($name),
                    slow: false,
                    run: |ctx| Box::pin($name(ctx)),
                },)*
                $($(super::Case {
                    group: $group,
                    name: stringify!($late),
                    slow: true,
                    run: |ctx| Box::pin($late(ctx)),
                },)*)?
            ]
        }
    };
}

pub(super) const GROUPS: &[fn() -> Vec<Case>] = &[
    super::create::cases,
    super::errors::cases,
    super::update::cases,
    super::patch_json::cases,
    super::patch_merge::cases,
    super::patch_strategic::cases,
    super::status::cases,
    super::delete::cases,
    super::finalizers::cases,
    super::gc::cases,
    super::list::cases,
    super::selectors::cases,
    super::watch::cases,
    super::crd::cases,
    super::crd_values::cases,
    super::pods::cases,
    super::kinds::cases,
    super::budgets::cases,
    super::evictions::cases,
    super::nodes::cases,
    super::scheduling::cases,
    super::lifecycle::cases,
    super::events::cases,
    super::discovery::cases,
];
