// What only Apache's newer libraries have.

include "everything.thrift"

service Uuids extends everything.Everything {
  uuid echoUuid(1: uuid value)
}
