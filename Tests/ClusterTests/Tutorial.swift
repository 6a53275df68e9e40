import ApusClient
import ApusContract  // the messages of requests and events
import ApusCore  // addresses, identifiers and errors

/// The code of the SDK's tutorial, Sources/Clients/ApusClient/ApusClient.docc/WriteAnApp.md.
///
/// A tidy test checks that each of its blocks is here, and TutorialTests runs it.
struct Tutorial {
    let session: ClientSession

    /// Opens a session, and waits until it has a connection.
    init(port: Int, authority: String, token: String) async throws {
        let configuration = ClientConfiguration(
            endpoints: [HostPort(host: "127.0.0.1", port: port)], authorityFile: authority, token: token, role: .app)
        let (links, feed) = AsyncStream.makeStream(
            of: (LinkState, ApusError?).self, bufferingPolicy: .bufferingNewest(1))
        let session = try ClientSession(configuration: configuration) { state, error in feed.yield((state, error)) }
        session.start()
        for await (state, error) in links {
            if state == .online { break }
            if state != .offline { throw error ?? ApusError(.notConnected) }
        }
        self.session = session
    }

    /// All devices of the token's account.
    func devices() async throws(ApusError) -> [ClientDevice] {
        var devices: [ClientDevice] = []
        var request = ClientListDevicesRequest()
        repeat {
            let page = try await session.ask(request)
            devices += page.devices
            request.pageToken = page.nextPageToken
        } while !request.pageToken.isEmpty
        return devices
    }

    /// Whether a device is online; nil if there is no answer at the moment.
    func isOnline(_ device: String) async throws(ApusError) -> Bool? {
        var request = ClientGetPresenceRequest()
        request.device = device
        do throws(ApusError) {
            return try await session.ask(request, timeout: .seconds(2)).online == 1
        } catch {
            switch error.code {
            case .notConnected, .linkLost, .answerTimedOut: return nil
            default: throw error
            }
        }
    }

    /// Returns once the device is online.
    func waitUntilOnline(_ device: String) async throws {
        for try await event in session.events(of: "presence/\(device)", as: ClientPresence.self) {
            if event.message.online == 1 { break }
        }
    }

    /// Plays a camera's channel, from which the snapshot takes its pictures.
    func watch(_ camera: DeviceID) -> (player: Player, snapshot: Snapshot) {
        let snapshot = Snapshot()
        let player = Player(session: session, device: camera) { frame in
            snapshot.write(frame)
        } onEvent: { event in
            if case .ended(let error) = event { print("The stream ended: \(error)") }
        }
        player.start()
        return (player, snapshot)
    }
}
