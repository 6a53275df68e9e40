import Testing

@Suite("Tidy: ports of tests")
struct PortTests {
    @Test("Clusters of tests use ports that the kernel gives to no connection (32768 and above, ip_local_port_range)")
    func basePorts() {
        var count = 0
        for file in SourceTree.swift where file.path.hasPrefix("Tests/ClusterTests/") {
            for line in file.lines {
                guard let found = line.firstMatch(of: #/basePort: ([0-9_]+)/#),
                    let port = Int(found.1.filter { $0 != "_" })
                else { continue }
                count += 1
                #expect((1024..<32_700).contains(port), "\(file.path) uses \(port)")
            }
        }
        #expect(count > 50)
    }
}
