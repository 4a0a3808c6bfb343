namespace cpp bench

service Echo {
  binary echo(1: binary payload)
}
