//! Values that all users of one fabric in a process share, by type. The fabric does not know their meaning.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// One value of each type that was requested.
#[derive(Debug, Default)]
pub struct SharedValues(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl SharedValues {
    /// Returns the value of type `T`; creates it at the first request.
    pub fn get<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = values.iter().find_map(|value| Arc::clone(value).downcast().ok()) {
            return value;
        }
        let value: Arc<T> = Arc::default();
        values.push(Arc::clone(&value) as _);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let values = SharedValues::default();
        let (number, word) = (values.get::<Mutex<u32>>(), values.get::<String>());
        *number.lock().unwrap() = 7;
        assert_eq!((*values.get::<Mutex<u32>>().lock().unwrap(), word.as_str()), (7, ""));
        assert!(Arc::ptr_eq(&number, &values.get()));
        assert!(!Arc::ptr_eq(&number, &SharedValues::default().get()));
    }
}
