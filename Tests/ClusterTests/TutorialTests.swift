import ApusClient
import ApusContract
import ApusCore
import Foundation
import Testing

@Suite("The SDK's tutorial", .timeLimit(.minutes(2)))
struct TutorialTests {
    @Test("The tutorial's code connects, lists the devices, waits for a camera and takes a picture of it")
    func tutorial() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 27_350)
        defer { cluster.down() }
        let minted = try cluster.run("admin", "token", "--role", "app", "--ttl", "2h")
        try #require(minted.status == 0, "\(minted.all)")
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25")
        let tutorial = try await Tutorial(
            port: cluster.endpointPort(1), authority: cluster.file("pki/ca.pem"),
            token: minted.output.trimmingCharacters(in: .whitespacesAndNewlines))
        defer { tutorial.session.close() }
        // The camera is listed once it has signed in, for which a node that has just started may need a while.
        var devices: [String] = []
        for _ in 0..<400 where devices.isEmpty {
            devices = ((try? await tutorial.devices()) ?? []).map(\.device)
            if devices.isEmpty { try await Task.sleep(for: .milliseconds(50)) }
        }
        #expect(devices == ["cam"])
        try await tutorial.waitUntilOnline("cam")
        #expect(try await tutorial.isOnline("cam") == true)
        let watched = tutorial.watch(try #require(DeviceID(rawValue: "cam")))
        defer { watched.player.stop() }
        var picture: [UInt8] = []
        for _ in 0..<400 where picture.isEmpty {
            picture = (try? watched.snapshot.png()) ?? []
            if picture.isEmpty { try await Task.sleep(for: .milliseconds(50)) }
        }
        #expect(picture.starts(with: [0x89, 0x50, 0x4e, 0x47]), "\(picture.count) bytes are no PNG file")
    }
}
