//! Enums whose values have numbers on the wire: one macro for all crates, from the fabrics to the command.
//!
//! This crate holds that macro. It depends on nothing and never holds an enum.

/// Gives an enum without fields the list of its values (`ALL`), the inverse of their numbers (`from_wire`) and, if the
/// values have names, their names (`name`). A value that is missing here is an error of compilation.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// #[repr(u8)]
/// enum Fruit {
///     Apple = 1,
///     Pear = 3,
/// }
/// dunlin_numbered::numbered!(Fruit: u8 { Apple = "apple", Pear = "pear" });
///
/// assert_eq!(Fruit::ALL.map(Fruit::name), ["apple", "pear"]);
/// assert_eq!([Fruit::from_wire(3), Fruit::from_wire(2)], [Some(Fruit::Pear), None]);
/// ```
#[macro_export]
macro_rules! numbered {
    ($type:ident: $number:ty { $($value:ident = $name:literal),+ $(,)? }) => {
        $crate::numbered!($type: $number { $($value),+ });

        impl $type {
            /// Returns the name, as in the documents.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name,)+
                }
            }
        }
    };
    ($type:ident: $number:ty { $($value:ident),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: [$type; [$($type::$value),+].len()] = {
                // A value that is not in the list does not compile.
                const fn listed(value: $type) -> $type {
                    match value {
                        $($type::$value)|+ => value,
                    }
                }
                [$(listed($type::$value)),+]
            };

            /// Returns the value with this number, or `None` if the number is unknown.
            #[inline]
            pub const fn from_wire(number: $number) -> Option<Self> {
                $(if number == $type::$value as $number {
                    return Some($type::$value);
                })+
                None
            }
        }
    };
}
