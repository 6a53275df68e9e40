import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusStorage
import ApusWire
import SwiftProtobuf

/// The registers of this binary's nodes, replicated and recorded ones.
struct RegisterService: NodeService {
    static let name = "Registers"
    private static let replicated = EntityDefinition.register(.register, name: "register", durability: .replicated)
    private static let recorded = EntityDefinition.register(
        .recordedRegister, name: "recorded register", durability: .recorded)
    private static let collection = EntityCollection<RegisterState>(
        "example-registers", kind: .recordedRegister, layout: 1)

    static let records = RecordCatalogue([collection])

    private let entities: EntityRegistry

    init(_ configuration: NoConfiguration, of node: NodeContext) {
        entities = node.entities
        node.runtime.register(Self.replicated)
        node.runtime.register(Self.recorded, in: Self.collection)
    }
}

extension RegisterWriteRequest: ClientRequestMessage, BoundedMessage {
    typealias Reply = RegisterResult
    static var info: ClientRequestInfo {
        ClientRequestInfo(
            1010, "registers.write", .post("/v1/registers/{register}/write"), roles: [.app, .admin],
            isIdempotent: false, fields: ["register": .register, "value": .number], "Set a register.")
    }
}

extension RegisterSwapRequest: ClientRequestMessage, BoundedMessage {
    typealias Reply = RegisterResult
    static var info: ClientRequestInfo {
        ClientRequestInfo(
            1011, "registers.swap", .post("/v1/registers/{register}/swap"), roles: [.app, .admin],
            isIdempotent: false, fields: ["register": .register, "expected": .number, "value": .number],
            "Set a register that has the expected value.")
    }
}

extension RegisterReadRequest: ClientRequestMessage, BoundedMessage {
    typealias Reply = RegisterResult
    static var info: ClientRequestInfo {
        ClientRequestInfo(
            1012, "registers.read", .get("/v1/registers/{register}"), roles: [.app, .admin],
            fields: ["register": .register], "Get the value of a register.")
    }
}

extension FieldRule {
    fileprivate static let register = Self(pattern: "^[A-Za-z0-9._-]{1,63}$", isRequired: true)
    fileprivate static let number = Self(pattern: "^(0|[1-9][0-9]{0,18})$")
}

extension RegisterService {
    func add(to api: inout ClientAPI) {
        api.addSchemas(registerSchemas)
        api.on(RegisterWriteRequest.self) { request, call throws(ApusError) in
            let message = RegisterWrite.with { $0.value = request.value }
            return try await entities.register(request.register, request.recorded)
                .ask(message, timeout: try call.timeLeft(), call: call.entityCall)
        }
        api.on(RegisterSwapRequest.self) { request, call throws(ApusError) in
            let message = RegisterSwap.with { ($0.expected, $0.value) = (request.expected, request.value) }
            return try await entities.register(request.register, request.recorded)
                .ask(message, timeout: try call.timeLeft(), call: call.entityCall)
        }
        api.on(RegisterReadRequest.self) { request, call throws(ApusError) in
            try await entities.register(request.register, request.recorded)
                .ask(RegisterRead(), timeout: try call.timeLeft())
        }
    }
}

extension EntityRegistry {
    /// - Throws: 21031 if this is no name of a register.
    fileprivate func register(
        _ name: String, _ recorded: Bool
    ) throws(ApusError) -> EntityRef<EntityCell<RegisterState>> {
        guard DeviceID(rawValue: name) != nil else {
            throw ApusError(.badParameter, "a register's name has 1 to 63 letters, digits, '-', '_' or '.'")
        }
        return ref(
            EntityCell<RegisterState>.self, EntityAddress(kind: recorded ? .recordedRegister : .register, key: name))
    }
}
