import Testing

@Suite("Tidy: the five import laws that the manifest cannot say alone")
struct ImportLawTests {
    private func expectNoImport(
        of modules: Set<String>, in files: [SourceTree.File], except allowed: [String], law: String
    ) {
        for file in files where !allowed.contains(where: { file.path.hasPrefix("Sources/\($0)") }) {
            for module in file.imports where modules.contains(module) {
                Issue.record("\(file.path) imports \(module): \(law)")
            }
        }
    }

    @Test("Law 1: only the transport, the edges, the clients, the node and the programs open sockets")
    func sockets() {
        expectNoImport(
            of: ["NIOPosix"], in: SourceTree.sources,
            except: [
                "Engine/ApusTransport", "Engine/ApusWyomingClient", "Engine/ApusWyomingServer", "Edges", "Clients",
                "Node", "Command", "Testing/ApusTestKit",
            ],
            law: "it may not open sockets")
    }

    @Test("Law 1: only the HTTP client knows libcurl")
    func outgoing() {
        expectNoImport(
            of: ["CApusCurl"], in: SourceTree.sources, except: ["Engine/ApusHTTPClient"],
            law: "its wrapper is ApusHTTPClient")
    }

    @Test("Law 1: libssl is the only TLS library (docs/decisions/50)")
    func security() {
        expectNoImport(
            of: ["CApusTLS"], in: SourceTree.sources, except: ["Native", "Engine/ApusRelay", "Command/ApusLocal"],
            law: "its wrapper is ApusTLS")
    }

    @Test("Law 1: libcrypto is the only library of cryptography (docs/decisions/52)")
    func cryptography() {
        expectNoImport(
            of: ["CApusCrypto"], in: SourceTree.sources, except: ["Native"], law: "its wrapper is ApusCrypto")
        expectNoImport(
            of: ["Crypto", "CryptoExtras", "X509", "SwiftASN1"], in: SourceTree.files, except: [],
            law: "ApusCrypto has it")
    }

    @Test("Law 1: no target has a second stack of TLS or HTTP/2, though packages that others need have them")
    func stacks() {
        expectNoImport(
            of: ["NIOSSL", "NIOHTTP2", "AsyncHTTPClient", "GRPCCore", "GRPCProtobuf", "GRPCNIOTransportHTTP2Posix"],
            in: SourceTree.files, except: [], law: "ApusTLS, ApusHTTPClient and ApusEtcd have it")
    }

    @Test("Law 1: only the storage, and the local database of a voice device, know the libraries of databases")
    func storage() {
        expectNoImport(
            of: ["GRDB"], in: SourceTree.sources,
            except: ["Engine/ApusStorage", "Clients/ApusDevice/Voice/VoiceDatabase.swift"],
            law: "only ApusStorage and VoiceDatabase may")
        expectNoImport(
            of: ["SQLite3", "ApusPQ"], in: SourceTree.sources, except: ["Engine/ApusStorage"],
            law: "only ApusStorage may")
        expectNoImport(of: ["CApusPQ"], in: SourceTree.sources, except: ["Native"], law: "its wrapper is ApusPQ")
    }

    @Test("Law 1: only the node knows the ownership store in etcd")
    func etcd() {
        expectNoImport(
            of: ["ApusEtcd"], in: SourceTree.sources, except: ["Node/ApusNode/", "Command/ApusBench/"],
            law: "only ApusNode and the benchmarks may")
    }

    @Test("Law 1: only devices, clients and recording know libav (D10)")
    func media() {
        expectNoImport(
            of: ["CLibAV", "CApusMedia"], in: SourceTree.sources,
            except: ["Native", "Clients", "Services/ApusRecording"], law: "libav is an adapter at the rim")
    }

    @Test("Law 2: a machine imports values, protocols, collections and NIOCore; it has no clock, lock, task or chance")
    func machines() {
        let machines = SourceTree.sources.filter(Self.isMachine)
        #expect(machines.contains { $0.name.contains("StateMachine+") })
        for breach in machines.flatMap(Self.breaches) { Issue.record("\(breach)") }
    }

    @Test(
        "Law 2 holds for the parts of a machine: a clock that is read in one is found",
        arguments: [
            "TurnServerStateMachine.swift", "TurnServerStateMachine+Users.swift",
        ])
    func partOfMachine(name: String) {
        let clock = "import ApusCore\n\nextension TurnServerStateMachine {\n    var time: MonotonicTime { .now() }\n}\n"
        let part = SourceTree.File(path: "Sources/Protocol/\(name)", text: clock)
        #expect(Self.isMachine(part))
        #expect(Self.breaches(of: part).count == 1)
        let network = SourceTree.File(path: "Sources/Protocol/\(name)", text: "import ApusCore\nimport NIOPosix\n")
        #expect(Self.breaches(of: network).count == 1)
        let shell = SourceTree.File(path: "Sources/Protocol/TurnServer.swift", text: clock)
        #expect(!Self.isMachine(shell))
    }

    /// The file of a machine, `TypeStateMachine.swift`, or of a part of one, `TypeStateMachine+Topic.swift`.
    private static func isMachine(_ file: SourceTree.File) -> Bool {
        file.name.hasSuffix("StateMachine.swift") || file.name.contains("StateMachine+")
    }

    /// What law 2 forbids in a machine's file.
    private static func breaches(of file: SourceTree.File) -> [String] {
        let allowed: Set = [
            "ApusCore", "ApusWire", "ApusContract", "ApusTraversal", "ApusWyoming", "ApusMedia", "NIOCore",
            "Collections", "DequeModule", "OrderedCollections", "SwiftProtobuf",
        ]
        let banned = [
            "await ", ".now()", "Task {", "Task(", "Mutex<", "Mutex(", "NIOLock", ".random(",
            "SystemRandomNumberGenerator", "Date()", "ContinuousClock", "DispatchQueue",
        ]
        var breaches = file.imports.filter { !allowed.contains($0) }.map {
            "\(file.path) imports \($0): a machine may not"
        }
        for (index, line) in file.lines.enumerated() {
            let code = line.drop { $0 == " " }
            guard !code.hasPrefix("//"), let word = banned.first(where: { code.contains($0) }) else { continue }
            breaches.append("\(file.path):\(index + 1) has \(word): time and chance are passed into a machine")
        }
        return breaches
    }

    @Test("Law 4: edges never import each other, services never import an edge")
    func edges() {
        let edges: Set = ["ApusGateway", "ApusHTTP"]
        for file in SourceTree.sources where file.path.hasPrefix("Sources/Edges/") {
            let own = file.path.split(separator: "/")[2]
            for module in file.imports where edges.contains(module) && module != own {
                Issue.record("\(file.path) imports the edge \(module)")
            }
        }
        let below = SourceTree.sources.filter {
            $0.path.hasPrefix("Sources/Services/") || $0.path.hasPrefix("Sources/Engine/")
        }
        expectNoImport(of: edges, in: below, except: [], law: "an edge is above it")
    }

    @Test("Law 5: clients never import a server target")
    func clients() {
        expectNoImport(
            of: [
                "ApusTransport", "ApusStorage", "ApusHTTPClient", "ApusEtcd", "ApusCluster", "ApusSessions",
                "ApusChannels", "ApusMediaAccess", "ApusRecording", "ApusCalls",
                "ApusDialogs", "ApusOperators", "ApusRelay", "ApusRelayService", "ApusGateway", "ApusHTTP",
                "ApusConfiguration", "ApusNodeConfiguration", "ApusRelayNode", "ApusNode",
            ],
            in: SourceTree.sources.filter { $0.path.hasPrefix("Sources/Clients/") }, except: [],
            law: "an SDK carries nothing of the server")
    }

    @Test("Core holds values: it imports no target of ours and opens nothing")
    func core() {
        let core = SourceTree.sources.filter { $0.path.hasPrefix("Sources/Core/") }
        #expect(!core.isEmpty)
        for file in core {
            for module in file.imports where module.hasPrefix("Apus") || module.hasPrefix("NIO") {
                Issue.record("\(file.path) imports \(module)")
            }
        }
    }
}
