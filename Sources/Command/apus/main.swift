import ApusCLI

await ApusProgram.main()
