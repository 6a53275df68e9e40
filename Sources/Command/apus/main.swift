import ApusCommand

await ApusProgram.main()
