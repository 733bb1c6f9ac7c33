//! Conditions: Kubernetes' own form for what a controller found out about an object.

use schemars::JsonSchema;

/// `status` of the kinds that have one.
#[derive(JsonSchema)]
pub struct Conditions {
    /// What controllers found out, one of each type.
    pub conditions: Option<Vec<Condition>>,
}

/// One condition, with the limits that Kubernetes gives all conditions.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about, such as Allocatable or Ready.
    #[schemars(
        rename = "type",
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
        )
    )]
    pub kind: String,
    /// Whether it is so.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Why, in one word for programs.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    /// Why, for people; may be empty.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// When it last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The generation of the object that this is about.
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}
