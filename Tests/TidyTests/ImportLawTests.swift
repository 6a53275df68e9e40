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

    @Test("Law 1: only the transport, the edges, the clients, the node and the command open sockets")
    func sockets() {
        expectNoImport(
            of: ["NIOPosix", "NIOSSL"], in: SourceTree.sources,
            except: ["Engine/ApusTransport", "Edges", "Clients", "Node", "Command"], law: "it may not open sockets")
    }

    @Test("Law 1: only the storage knows the libraries of SQLite and PostgreSQL")
    func storage() {
        expectNoImport(
            of: ["GRDB", "SQLite3", "ApusPQ"], in: SourceTree.sources, except: ["Engine/ApusStorage"],
            law: "only ApusStorage may")
        expectNoImport(of: ["CApusPQ"], in: SourceTree.sources, except: ["Native"], law: "its wrapper is ApusPQ")
    }

    @Test("Law 1: only devices, clients and recording know libav (D10)")
    func media() {
        expectNoImport(
            of: ["CLibAV", "CApusMedia"], in: SourceTree.sources,
            except: ["Native", "Clients", "Services/ApusRecording"], law: "libav is an adapter at the rim")
    }

    @Test("Law 2: a machine imports values, protocols, collections and NIOCore; it has no clock, lock, task or chance")
    func machines() {
        let allowed: Set = [
            "ApusCore", "ApusWire", "ApusContract", "ApusTraversal", "ApusMedia", "NIOCore", "Collections",
            "DequeModule",
            "OrderedCollections", "SwiftProtobuf",
        ]
        let banned = [
            "await ", ".now()", "Task {", "Task(", "Mutex<", "Mutex(", "NIOLock", ".random(",
            "SystemRandomNumberGenerator",
            "Date()", "ContinuousClock", "DispatchQueue",
        ]
        for file in SourceTree.sources where file.name.hasSuffix("StateMachine.swift") {
            for module in file.imports where !allowed.contains(module) {
                Issue.record("\(file.path) imports \(module): a machine may not")
            }
            for (index, line) in file.lines.enumerated() {
                let code = line.drop { $0 == " " }
                guard !code.hasPrefix("//"), let word = banned.first(where: { code.contains($0) }) else { continue }
                Issue.record("\(file.path):\(index + 1) has \(word): time and chance are passed into a machine")
            }
        }
    }

    @Test("Law 4: edges never import each other, services never import an edge")
    func edges() {
        let edges: Set = ["ApusGateway", "ApusRelay", "ApusHTTP"]
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
                "ApusTransport", "ApusStorage", "ApusCluster", "ApusSessions", "ApusChannels", "ApusRecording",
                "ApusCalls",
                "ApusDialogs", "ApusGateway", "ApusRelay", "ApusHTTP", "ApusNode",
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
