//! The status of a response.

use core::fmt;

/// The outcome of a call, as reported by the server. A `u16` on the wire: numbers below 0x100 belong to the
/// framework, 0x100 and above to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The handler ran, and the payload is its result.
    Ok,
    /// The service has no such function. Not executed.
    UnknownFunction,
    /// The request or the result exceeds a limit. An answer with a payload means the result: the handler ran.
    TooLarge,
    /// The call id is in flight or was already answered. This request was not executed again.
    DuplicateCall,
    /// The server has no capacity for the call. Not executed; retry later.
    Overloaded,
    /// The server is shutting down. Not executed; call another server.
    Draining,
    /// The handler panicked, and the call may have been executed in part. An answer without a payload means
    /// that the application dropped the call, which may have been executed.
    HandlerPanicked,
    /// The deadline passed before the handler ran. Not executed. An answer with a payload comes from an intermediary
    /// that does not know.
    DeadlineExceeded,
    /// The payload does not match the function's argument type. Not executed.
    Malformed,
    /// The caller is not allowed to call this function. Not executed.
    Unauthorised,
    /// An intermediary has no connection to the server. Not executed; retry later.
    Unreachable,
    /// The application's status code; the payload is the application's error.
    Application(ApplicationCode),
}

/// A status code of the application: 0 to 0xfeff, sent as 0x100 to 0xffff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApplicationCode(u16);

impl ApplicationCode {
    /// The largest code.
    pub const MAX: u16 = u16::MAX - Status::FIRST_APPLICATION;

    /// Creates a code, or returns `None` if it exceeds [`ApplicationCode::MAX`].
    pub const fn new(code: u16) -> Option<ApplicationCode> {
        if code <= Self::MAX { Some(ApplicationCode(code)) } else { None }
    }

    /// Returns the application's number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Status {
    /// The first number on the wire that belongs to the application.
    pub const FIRST_APPLICATION: u16 = 0x100;

    /// Returns the number on the wire.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        match self {
            Status::Ok => 0,
            Status::UnknownFunction => 1,
            Status::TooLarge => 2,
            Status::DuplicateCall => 3,
            Status::Overloaded => 4,
            Status::Draining => 5,
            Status::HandlerPanicked => 6,
            Status::DeadlineExceeded => 7,
            Status::Malformed => 8,
            Status::Unauthorised => 9,
            Status::Unreachable => 10,
            Status::Application(code) => Self::FIRST_APPLICATION + code.0,
        }
    }

    /// Returns the status with this number on the wire, or `None` if this version does not know it.
    #[inline]
    pub const fn from_wire(number: u16) -> Option<Status> {
        Some(match number {
            0 => Status::Ok,
            1 => Status::UnknownFunction,
            2 => Status::TooLarge,
            3 => Status::DuplicateCall,
            4 => Status::Overloaded,
            5 => Status::Draining,
            6 => Status::HandlerPanicked,
            7 => Status::DeadlineExceeded,
            8 => Status::Malformed,
            9 => Status::Unauthorised,
            10 => Status::Unreachable,
            11..Self::FIRST_APPLICATION => return None,
            application => Status::Application(ApplicationCode(application - Self::FIRST_APPLICATION)),
        })
    }

    /// Returns whether this version knows the number. Cheaper than [`Status::from_wire`] when the value is
    /// not needed yet.
    #[inline]
    pub(crate) const fn is_known(number: u16) -> bool {
        number < 11 || number >= Self::FIRST_APPLICATION
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Status::Ok => "ok",
            Status::UnknownFunction => "no such function in the service",
            Status::TooLarge => "request or result over the limit",
            Status::DuplicateCall => "call id used twice",
            Status::Overloaded => "server overloaded",
            Status::Draining => "server draining",
            Status::HandlerPanicked => "the handler panicked",
            Status::DeadlineExceeded => "deadline exceeded before execution",
            Status::Malformed => "malformed request",
            Status::Unauthorised => "not authorised",
            Status::Unreachable => "the server cannot be reached from the node on the way",
            Status::Application(code) => return write!(formatter, "application error {}", code.0),
        };
        formatter.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_meaning_or_none() {
        let mut known = 0;
        for number in 0..=u16::MAX {
            let status = Status::from_wire(number);
            assert_eq!(Status::is_known(number), status.is_some());
            if let Some(status) = status {
                assert_eq!(status.to_wire(), number);
                known += 1;
            }
        }
        assert_eq!(known, 11 + 0xff00);
    }

    #[test]
    fn application_codes_have_a_range() {
        assert_eq!(ApplicationCode::MAX, 0xfeff);
        assert!(ApplicationCode::new(0xff00).is_none());
        let last = ApplicationCode::new(0xfeff).unwrap();
        assert_eq!(Status::Application(last).to_wire(), 0xffff);
        assert_eq!(Status::Application(last).to_string(), "application error 65279");
    }
}
