import ApusCLI

// All verbs of `apus`, with nodes that have the doors.
await ApusProgram.main(services: [DoorService.self])
