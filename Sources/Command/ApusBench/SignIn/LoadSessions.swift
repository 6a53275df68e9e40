import ApusClient
import ApusCore
import ApusLocal
import ApusSessions

/// Sessions of many devices and of apps of their accounts, each at another node.
struct LoadSessions: Sendable {
    struct Device: Sendable {
        let id: DeviceID
        let session: ClientSession
    }

    private let stage: SignInStage
    let devices: [Device]
    let apps: [ClientSession]
    /// A node limits the requests of each account.
    static let accountCount = 8

    init(_ stage: SignInStage, devices count: Int, apps appCount: Int) async throws {
        self.stage = stage
        let nodes = stage.local.mark.nodes.map(\.name)
        var (devices, apps) = ([Device](), [ClientSession]())
        for number in 0..<count {
            let id = DeviceID(unchecked: "device-\(number)")
            let session = try await stage.session(
                .device, AccessID(unchecked: id.rawValue), account: Self.account(number), device: id,
                first: nodes[number % nodes.count])
            devices.append(Device(id: id, session: session))
        }
        for number in 0..<appCount {
            apps.append(
                try await stage.session(
                    .app, AccessID(unchecked: "app-\(number)"), account: Self.account(number), device: nil,
                    first: nodes[(number / Self.accountCount + number + 1) % nodes.count]))
        }
        (self.devices, self.apps) = (devices, apps)
    }

    static func account(_ number: Int) -> AccountID { AccountID(unchecked: "account-\(number % accountCount)") }

    /// An app of the device's account.
    func app(_ device: Int, _ number: Int) -> ClientSession {
        let own = apps.count / Self.accountCount
        return apps[device % Self.accountCount + Self.accountCount * (number % max(1, own))]
    }

    /// The CPU time of all nodes, in seconds.
    func busySeconds() throws(ApusError) -> Double {
        var sum = 0.0
        for node in stage.local.mark.nodes { sum += try stage.busySeconds(of: node.name) }
        return sum
    }

    func close() {
        for session in apps + devices.map(\.session) { session.close() }
    }

    /// Repeats until the body does not throw, for ten seconds and the time that it takes.
    static func repeated(_ body: () async throws(ApusError) -> Void) async throws {
        var last = ApusError(.unavailable)
        for _ in 0..<200 {
            do throws(ApusError) { return try await body() } catch { last = error }
            try await Task.sleep(for: .milliseconds(50))
        }
        throw last
    }
}
