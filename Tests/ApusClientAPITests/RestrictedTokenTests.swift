import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import ApusWire
import NIOCore
import SwiftProtobuf
import Testing

/// A token for certain devices makes no request that is not meant for it (IV-A3).
@Suite("Requests with a token for certain devices")
struct RestrictedTokenTests {
    private static func session(_ role: Session.Role, restricted: Bool) -> Session {
        Session(
            id: "-", role: role, access: AccessID(unchecked: "ann"), account: AccountID(unchecked: "a"), device: nil,
            allowedDevices: restricted ? [DeviceID(unchecked: "cam")] : nil, sinceMilliseconds: 0,
            token: TokenMark(tag: 0, issuedAt: 0, expires: .max))
    }

    private func code<M: ClientRequestMessage & BoundedMessage>(
        _ request: M, _ session: Session
    ) async throws -> ErrorCode? {
        var api = ClientAPI()
        api.on(M.self) { _, _ throws(ApusError) in M.Reply() }
        let bytes = ByteBuffer(bytes: try request.serializedBytes() as [UInt8])
        let work = try api.operation(number: M.info.number).read(bytes, .binary)
        do throws(ApusError) {
            _ = try await work.run(ClientCall(session: session, deadline: .now() + .seconds(1)))
            return nil
        } catch { return error.code }
    }

    @Test("It is refused with 12004 before the handler runs, unless the request is for such tokens")
    func refused() async throws {
        for role: Session.Role in [.app, .admin] {
            #expect(try await code(ClientSetAnsweringMachineRequest(), Self.session(role, restricted: false)) == nil)
            #expect(
                try await code(ClientSetAnsweringMachineRequest(), Self.session(role, restricted: true)) == .notAllowed)
            #expect(
                try await code(ClientSetGreetingRequest(), Self.session(role, restricted: true)) == .notAllowed)
            #expect(try await code(ClientGetDeviceRequest(), Self.session(role, restricted: true)) == nil)
        }
    }

    @Test("A request that says nothing is not for such tokens")
    func standard() {
        #expect(!ClientRequestInfo(1000, "doors.pass", roles: .app, "Pass a door.").isForNamedDevices)
    }

    @Test("A token that names devices knows no others, whatever its role", arguments: [Session.Role.app, .admin])
    func known(role: Session.Role) {
        let record = DeviceRecord(device: DeviceID(unchecked: "bell"), account: AccountID(unchecked: "a"), epoch: 1)
        #expect(Self.session(role, restricted: false).mayKnow(record))
        #expect(!Self.session(role, restricted: true).mayKnow(record))
    }
}
