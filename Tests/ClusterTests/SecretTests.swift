import Foundation
import Testing

/// Tokens, secrets and logs stay with their owner.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct SecretTests {
    @Test("A token comes from a file, from standard input or from the environment as well as from the command line")
    func token() throws {
        let cluster = try Cluster(nodes: 1, basePort: 21_200)
        defer { cluster.down() }
        let minted = try cluster.run("admin", "token", "--role", "app", "--account", "other")
        let token = minted.output.trimmingCharacters(in: .whitespacesAndNewlines)
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--log", cluster.file("d"))
        for _ in 0..<100 where Frames(cluster.file("d")).lines.isEmpty { Thread.sleep(forTimeInterval: 0.1) }
        let file = cluster.file("token")
        try "\(token)\n".write(toFile: file, atomically: true, encoding: .utf8)
        // Another account's token is told so by its number: it is this one that was shown.
        for (arguments, environment) in [
            (["--token", token], [:]), (["--token-file", file], [:]), ([], ["APUS_TOKEN": token]),
        ] as [([String], [String: String])] {
            let outcome = try Cluster.run(
                ["watch", "cam", "--seconds", "10", "--dir", cluster.directory] + arguments, environment: environment)
            #expect(outcome.status != 0 && outcome.errors.contains("8003"), "\(arguments): \(outcome.all)")
        }
        let command = "\(Cluster.apus) watch cam --seconds 10 --dir \(cluster.directory) --token-file - < \(file)"
        let typed = try Cluster.run(["-c", command], binary: "/bin/sh")
        #expect(typed.errors.contains("8003"), "\(typed.all)")
        let both = try cluster.run("watch", "cam", "--token", token, "--token-file", file)
        #expect(both.status != 0 && both.errors.contains("21031"), "\(both.all)")
        let missing = try cluster.run("watch", "cam", "--token-file", cluster.file("none"))
        #expect(missing.status != 0 && missing.errors.contains("10021"), "\(missing.all)")
    }

    @Test("Logs and databases of a local cluster are its user's alone")
    func modes() throws {
        let cluster = try Cluster(nodes: 1, basePort: 21_250)
        defer { cluster.down() }
        var files = 0
        let all = try #require(FileManager.default.enumerator(atPath: cluster.directory))
        for case let name as String in all
        where name.hasSuffix("/log") || name.contains("records.sqlite") || name.hasSuffix(".key") {
            let attributes = try FileManager.default.attributesOfItem(atPath: cluster.file(name))
            let mode = try #require(attributes[.posixPermissions] as? NSNumber).intValue
            #expect(mode & 0o077 == 0, "\(name) has mode \(String(mode, radix: 8))")
            files += 1
        }
        #expect(files >= 4)
    }
}
