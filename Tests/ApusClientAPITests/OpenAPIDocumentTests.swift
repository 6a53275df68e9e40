import ApusClientAPI
import ApusContract
import Foundation
import Testing

/// The document says what nodes refuse (D17).
@Suite("OpenAPI document")
struct OpenAPIDocumentTests {
    private let document: [String: Any]

    init() throws {
        var api = ClientAPI()
        api.addSchemas(serviceSchemas)
        api.on(ClientCreateFirmwareRequest.self) { _, _ in .init() }
        api.on(ClientRollOutFirmwareRequest.self) { _, _ in .init() }
        let text = Data(OpenAPIDocument(api).text.utf8)
        document = try #require(try JSONSerialization.jsonObject(with: text) as? [String: Any])
    }

    /// The part of the document at the names.
    private func part(_ names: String...) throws -> [String: Any] {
        var found = document
        for name in names { found = try #require(found[name] as? [String: Any], "no \(name)") }
        return found
    }

    private func body(_ path: String) throws -> [String: Any] {
        try part("paths", path, "post", "requestBody", "content", "application/json", "schema")
    }

    @Test("A field that is required is named, and an enum's first value, which means a missing field, is not allowed")
    func required() throws {
        let schema = try body("/v1/customers/{customer}/products/{product}/firmware/{version}/roll-out")
        #expect(schema["required"] as? [String] == ["state"])
        let properties = try #require(schema["properties"] as? [String: [String: Any]])
        #expect(
            properties["state"]?["enum"] as? [String] == [
                "ROLL_OUT_STATE_DRAFT", "ROLL_OUT_STATE_ACTIVE", "ROLL_OUT_STATE_PAUSED", "ROLL_OUT_STATE_STOPPED",
            ])
        #expect(properties["percentage"]?["maximum"] as? Int == 100)
        #expect(properties["groups"]?["uniqueItems"] as? Bool == true)
        #expect((properties["groups"]?["items"] as? [String: Any])?["pattern"] != nil)
    }

    /// The requests without a path are in the other document, with their messages (D17).
    @Test("A request that REST does not have is in the AsyncAPI document, with the schemas of both messages")
    func withoutPath() throws {
        var api = ClientAPI()
        api.addSchemas(clientSchemas)
        api.on(ClientSubscribeRequest.self) { _, _ in .init() }
        api.on(ClientUnsubscribeRequest.self) { _, _ in .init() }
        let text = Data(AsyncAPIDocument(api).text.utf8)
        let made = try #require(try JSONSerialization.jsonObject(with: text) as? [String: Any])
        let schemas = try #require((made["components"] as? [String: Any])?["schemas"] as? [String: Any])
        let requests = try #require((made["channels"] as? [String: Any])?["requests"] as? [String: Any])
        let messages = try #require(requests["messages"] as? [String: [String: Any]])
        for operation in api.operations {
            #expect(operation.info.path == nil)
            let name = operation.info.name
            let request = try #require(messages[name]?["payload"] as? [String: Any])
            let properties = try #require(request["properties"] as? [String: [String: Any]])
            #expect(properties["request"]?["const"] as? String == name)
            let reference = try #require(properties["body"]?["$ref"] as? String)
            let schema = try #require(schemas[reference.replacing("#/components/schemas/", with: "")] as? [String: Any])
            #expect((schema["properties"] as? [String: Any])?.isEmpty == false, "\(name)")
            #expect(messages["\(name).response"] != nil)
        }
        let operations = try #require(made["operations"] as? [String: [String: Any]])
        #expect(operations["ask.topics.subscribe"]?["reply"] != nil)
    }

    @Test("Rules of messages in a list hold for each of them: the list has its bound, the message its fields")
    func nested() throws {
        let schema = try body("/v1/customers/{customer}/firmware")
        let descriptions = try #require((schema["properties"] as? [String: [String: Any]])?["descriptions"])
        #expect(descriptions["maxItems"] as? Int == 16)
        let item = try #require(descriptions["items"] as? [String: String])
        #expect(item["$ref"] == "#/components/schemas/FirmwareDescription")
        let message = try part("components", "schemas", "FirmwareDescription")
        #expect(message["required"] as? [String] == ["language"])
        let properties = try #require(message["properties"] as? [String: [String: Any]])
        #expect(properties["language"]?["pattern"] as? String == "^[A-Za-z0-9-]{1,35}$")
        #expect(properties["text"]?["pattern"] == nil)
    }
}
