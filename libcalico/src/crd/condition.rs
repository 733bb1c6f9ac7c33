//! Conditions: Kubernetes' standard form for the findings of a controller about an object.

use schemars::JsonSchema;

/// `status` of the kinds that have one.
#[derive(JsonSchema)]
pub struct Conditions {
    /// Findings of controllers, at most one of each type.
    pub conditions: Option<Vec<Condition>>,
}

/// A condition, with the limits that Kubernetes defines for all conditions.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, such as Allocatable or Ready.
    #[schemars(
        rename = "type",
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
        )
    )]
    pub kind: String,
    /// Status of the condition.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Reason in one word, for programs.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    /// Reason as text, for people; may be empty.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Time of the last change.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Generation of the object to which the condition applies.
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}
