import ApusCLI

// All verbs of `apus`, with nodes that have the registers.
await ApusProgram.main(services: [RegisterService.self])
