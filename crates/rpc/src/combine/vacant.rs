//! Numbers of seats without a thread.

use std::sync::{Mutex, PoisonError};

/// The numbers below a limit that nobody has. Any thread takes one, the lowest that was never used if none was given
/// back, and gives it back.
#[derive(Debug)]
pub(crate) struct Vacant(Mutex<Numbers>);

#[derive(Debug)]
struct Numbers {
    /// Numbers from here on were never taken.
    unused: u16,
    limit: u16,
    left: Vec<u16>,
}

impl Vacant {
    pub(crate) fn new(limit: u16) -> Self {
        Vacant(Mutex::new(Numbers { unused: 0, limit, left: Vec::with_capacity(limit.into()) }))
    }

    /// Takes a number; `None` if all are taken.
    pub(crate) fn take(&self) -> Option<u16> {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.left.pop() {
            return Some(number);
        }
        let number = numbers.unused;
        (number < numbers.limit).then(|| numbers.unused += 1)?;
        Some(number)
    }

    /// Gives a number back. Does not allocate.
    pub(crate) fn give_back(&self, number: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).left.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_owner() {
        let vacant = Vacant::new(3);
        assert_eq!([(); 4].map(|()| vacant.take()), [Some(0), Some(1), Some(2), None]);
        vacant.give_back(1);
        assert_eq!([(); 2].map(|()| vacant.take()), [Some(1), None]);
        assert_eq!(Vacant::new(0).take(), None);
    }
}
