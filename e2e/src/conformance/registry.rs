//! The groups of cases. `cases!` in a file names its cases; its line here adds them.

use super::Case;

/// Defines `cases`, the cases of a file.
///
/// Cases after `slow` wait for slow controllers: they start first and have a longer timeout.
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
