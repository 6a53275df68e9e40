import ApusCore
import Testing

@Suite("What services offer each other")
struct ServicePortsTests {
    private protocol Greeter: Sendable { var greeting: String { get } }
    private struct English: Greeter { let greeting = "hello" }
    private struct French: Greeter { let greeting = "bonjour" }

    @Test("All that is provided of a type is found, in order, and nothing of another type")
    func order() {
        let ports = ServicePorts()
        ports.provide(English(), as: (any Greeter).self)
        ports.provide(French(), as: (any Greeter).self)
        #expect(ports.all((any Greeter).self).map(\.greeting) == ["hello", "bonjour"])
        #expect(ports.all(English.self).isEmpty)
    }

    @Test("The one that is asked for must be the only one (10018)")
    func one() throws {
        let ports = ServicePorts()
        #expect(throws: ApusError(.internalFailure, "0 services provide Greeter; one is expected")) {
            try ports.one((any Greeter).self)
        }
        ports.provide(French(), as: (any Greeter).self)
        #expect(try ports.one((any Greeter).self).greeting == "bonjour")
        ports.provide(French(), as: (any Greeter).self)
        #expect(throws: ApusError(.internalFailure, "2 services provide Greeter; one is expected")) {
            try ports.one((any Greeter).self)
        }
    }
}
