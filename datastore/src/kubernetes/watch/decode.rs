//! [`Decode`]: how the text of an object becomes what is wanted of it.

use crate::watch::Change;

/// Reads the objects of one kind. Each call is given the JSON of one object.
pub trait Decode: Send + 'static {
    /// What is wanted of an object.
    type Value: Send + 'static;
    /// What names one.
    type Key: Send + 'static;

    /// The kind, for logs.
    fn kind(&self) -> &'static str;

    /// The kind, as the API server has it in a list of these objects. Asked for after [`Decode::collection`].
    fn object_kind(&self) -> &'static str {
        self.kind()
    }

    /// The URL path of all objects.
    fn collection(&mut self) -> impl Future<Output = Result<String, String>> + Send;

    /// Reads an object that is there; `None` for one that is of no concern.
    fn put(&mut self, object: &str) -> Option<Change<Self::Value, Self::Key>>;

    /// What names an object, whatever else may be wrong with it.
    fn key(&mut self, object: &str) -> Option<Self::Key>;

    /// The server does not have the collection.
    fn is_missing(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}
