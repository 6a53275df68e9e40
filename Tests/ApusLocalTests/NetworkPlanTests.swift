import ApusCore
import ApusLocal
import Testing

@Suite("The names, addresses and rules of an isolated cluster's network")
struct NetworkPlanTests {
    private static func plan(
        _ path: String = "/state/one", isTaken: (String) -> Bool = { _ in false }
    ) throws -> NetworkPlan {
        let plan = NetworkPlan.choose(path: path, isTaken: isTaken)
        return try #require(plan)
    }

    @Test("The names depend on the path alone, and those of another directory differ")
    func names() throws {
        let plan = try Self.plan()
        #expect(try plan == Self.plan())
        #expect(try plan.prefix != Self.plan("/state/two").prefix)
        #expect(plan.prefix.wholeMatch(of: /apus-[0-9a-f]{8}/) != nil)
        // The limit of the system (IFNAMSIZ).
        #expect(plan.operatorInterface.utf8.count <= 15)
        #expect(plan.owns(namespace: plan.prefix) && plan.owns(namespace: plan.namespace(of: "n1")))
        #expect(!plan.owns(namespace: "\(plan.prefix)x") && !plan.owns(namespace: "apus-other"))
    }

    @Test("A network in use is skipped, and there is none if all 512 are in use")
    func taken() throws {
        let first = try Self.plan()
        let second = try Self.plan { $0 == "\(first.subnet)." }
        #expect(second.subnet != first.subnet && second.prefix == first.prefix)
        var seen: Set<String> = []
        #expect(
            NetworkPlan.choose(
                path: "/state/one",
                isTaken: { text in
                    seen.insert(text)
                    return true
                }) == nil)
        #expect(seen.count == 512 && seen.allSatisfy { $0.hasPrefix("198.18.") || $0.hasPrefix("198.19.") })
    }

    @Test("Each endpoint has an address, a port and a namespace of its own, and keeps them when others are added")
    func endpoints() throws {
        var plan = try Self.plan()
        plan.clients = ["cam"]
        let before = plan.endpoints(nodes: ["n1", "n2"])
        plan.clients.append("phone")
        let after = plan.endpoints(nodes: ["n1", "n2", "n3"])
        #expect(before.allSatisfy { after.contains($0) } && after.count == 5)
        #expect(Set(after.map(\.address)).count == 5 && Set(after.map(\.port)).count == 5)
        #expect(Set(after.map(\.namespace)).count == 5)
        #expect(!after.map(\.address).contains(plan.operatorAddress))
        #expect(plan.nodeAddresses.first == after.first?.address)
    }

    @Test("The commands name only interfaces that this network makes, and nothing else of the machine")
    func commands() throws {
        let plan = try Self.plan()
        for endpoint in plan.endpoints(nodes: ["n1"]) {
            for command in plan.commands(for: endpoint) {
                #expect(command.starts(with: ["ip", "-n"]), "\(command)")
                #expect(plan.owns(namespace: command[2]), "\(command)")
            }
        }
        for command in plan.bridgeCommands where !command.starts(with: ["ip", "-n", plan.prefix]) {
            #expect(command.contains(plan.operatorInterface), "\(command)")
        }
    }

    @Test("Without faults, the rules only remove the table")
    func noRules() throws {
        let text = NetworkRules.text(NetworkFaults(), endpoints: [], plan: try Self.plan())
        #expect(text == "table bridge apus_faults\ndelete table bridge apus_faults\n")
    }

    @Test("A one-way cut drops one direction, after the operator's packets were accepted")
    func cutRules() throws {
        let plan = try Self.plan()
        var faults = NetworkFaults()
        try faults.cut(["n1"], ["n2"], isOneWay: true)
        let text = NetworkRules.text(faults, endpoints: plan.endpoints(nodes: ["n1", "n2"]), plan: plan)
        #expect(
            text == """
                table bridge apus_faults
                delete table bridge apus_faults
                table bridge apus_faults {
                    chain forward {
                        type filter hook forward priority 0; policy accept;
                        ip saddr \(plan.subnet).254 accept
                        ip daddr \(plan.subnet).254 accept
                        ip saddr \(plan.subnet).1 ip daddr \(plan.subnet).2 counter drop
                    }
                }

                """)
    }

    @Test("A loss applies to both directions of an endpoint, and a cut from the store to each of its servers")
    func otherRules() throws {
        var plan = try Self.plan()
        plan.stores = ["\(plan.subnet).200", "\(plan.subnet).201"]
        var faults = NetworkFaults()
        try faults.setLoss(30, of: "n2")
        faults.cutStore(of: "n1")
        let text = NetworkRules.text(faults, endpoints: plan.endpoints(nodes: ["n1", "n2"]), plan: plan)
        let drops = text.split(separator: "\n").filter { $0.hasSuffix("drop") }.map { $0.drop { $0 == " " } }
        #expect(drops.count == 6)
        for side in ["saddr", "daddr"] {
            #expect(drops.contains("ip \(side) \(plan.subnet).2 numgen random mod 100 < 30 counter drop"))
        }
        for store in plan.stores {
            #expect(drops.contains("ip saddr \(plan.subnet).1 ip daddr \(store) counter drop"))
            #expect(drops.contains("ip saddr \(store) ip daddr \(plan.subnet).1 counter drop"))
        }
    }

    @Test("A delay makes no rule: a process holds the packets")
    func delayRules() throws {
        let plan = try Self.plan()
        var faults = NetworkFaults()
        try faults.setDelay(50, of: "n1")
        let text = NetworkRules.text(faults, endpoints: plan.endpoints(nodes: ["n1"]), plan: plan)
        #expect(!text.contains("chain"))
    }
}
