import ApusBench

await BenchProgram.main()
