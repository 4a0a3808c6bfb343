struct Thing { 1: i32 number }
