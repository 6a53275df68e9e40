import ApusCommand

// All verbs of `apus`, with nodes that carry the doors.
await ApusProgram.main(services: [DoorService()])
